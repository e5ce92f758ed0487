-- Items that fall due, and leases.
-- Defines: bring_in, promote; first_at, is_over, key_of, lease, plain_leases, lease_items.

-- Makes items ready that have fallen due. Gives how many.
local function bring_in(queue, limit)
  local due = redis.call('ZRANGEBYSCORE', root .. 'waiting:' .. queue, '-inf', now, 'LIMIT', 0, limit)
  for _, body in ipairs(due) do
    local stand = cmsgpack.unpack(redis.call('GET', root .. 's:' .. body))
    redis.call('ZREM', root .. 'waiting:' .. queue, body)
    redis.call('ZADD', root .. 'ready:' .. queue .. ':' .. stand.p, stand.r, digits(stand.n) .. body)
    if stand.s == 'failed' then
      stand.s = 'pending'
      save(body, stand)
      add(queue, 'failed', -1)
      add(queue, 'pending', 1)
    end
    arrivals[queue] = (arrivals[queue] or 0) + 1
  end
  return #due
end

local function promote(limit)
  local count = 0
  for _, queue in ipairs(redis.call('HKEYS', root .. 'info')) do
    if count < limit then
      count = count + bring_in(queue, limit - count)
    end
  end
  return count
end

local function first_at(kind)
  local head = redis.call('ZRANGE', root .. kind, 0, 0, 'WITHSCORES')
  return head[2] and tonumber(head[2])
end

local function is_over(instant)
  return instant and instant <= now
end

local function key_of(call, body)
  return string.sub(redis.sha1hex(call[6] .. body), 1, 16)
end

local function lease(queue, info, body, stand, content, call, deadline)
  if stand.e then
    redis.call('ZREM', root .. 'expiring:' .. queue, body)
  end
  if stand.m then
    redis.call('ZREM', root .. 'dead:' .. queue, body)
  end
  stand.s, stand.d, stand.a = 'active', (stand.d or 0) + 1, (stand.a or 0) + 1
  stand.t, stand.w = key_of(call, body), call[3] or nil
  stand.L, stand.D, stand.F = now, deadline, stand.F or now
  local packed = cmsgpack.pack(stand)
  contents[#contents + 1] = root .. 's:' .. body
  contents[#contents + 1] = packed
  add_to('leases:' .. queue, deadline, digits(stand.n) .. body)
  if info.f.leased then
    tell('leased', queue, stand.i and stand.i[#stand.i] or string.sub(content, 17, 32) .. hexadecimal(body))
  end
  return {body, content, packed}
end

-- Leases items that nobody has leased before, and of which nothing is said: they differ in three fields only, which are
-- written behind the others. A map of up to 15 fields begins with 128 and their number; a text of one letter with 161,
-- one of 16 letters with 176.
local function plain_leases(queue, info, rank, call, deadline)
  local same = {q = queue, p = rank, s = 'active', d = 1, a = 1, w = call[3] or nil, L = now, D = deadline, F = now}
  local packed = cmsgpack.pack(same)
  local head = string.char(string.byte(packed) + 3) .. string.sub(packed, 2) .. '\161n'
  local leased = gathered(sets, 'leases:' .. queue)
  return function(member, ready_at, content)
    local seq, body = string.sub(member, 1, 16), string.sub(member, 17)
    local numbers = cmsgpack.pack(tonumber(seq)) .. '\161r' .. cmsgpack.pack(tonumber(ready_at))
    local stand = head .. numbers .. '\161t\176' .. key_of(call, body)
    contents[#contents + 1] = root .. 's:' .. body
    contents[#contents + 1] = stand
    leased[#leased + 1] = deadline
    leased[#leased + 1] = member
    if info.f.leased then
      tell('leased', queue, string.sub(content, 17, 32) .. hexadecimal(body))
    end
    return {body, content, stand}
  end
end

-- {queue, limit, worker or false, timeout or -1, swept, seed of the keys}; gives {overdue, next_at or -1, leases}, with
-- next_at only where there are fewer than were asked for
local function lease_items(call)
  local queue, limit = call[1], call[2]
  local info = info_of(queue)
  if not info then
    return false
  end
  if info.p then
    return {0, -1, {}}
  end
  if not looked_at[queue] then
    bring_in(queue, 1000)
    looked_at[queue] = {is_over(first_at('leases:' .. queue)) or is_over(first_at('expiring:' .. queue))}
  end
  if not call[5] and looked_at[queue][1] then
    return {1, -1, {}}
  end
  local deadline = now + (call[4] >= 0 and call[4] or info.t)
  local leases, rank = {}, 9
  while rank >= 0 and #leases < limit do
    local key, wanted = root .. 'ready:' .. queue .. ':' .. rank, math.min(limit - #leases, 500)
    local heads = redis.call('ZRANGE', key, 0, wanted - 1, 'WITHSCORES')
    if #heads > 0 then
      redis.call('ZREMRANGEBYRANK', key, 0, #heads / 2 - 1)
    end
    local bodies = {}
    for at = 1, #heads, 2 do
      bodies[#bodies + 1] = string.sub(heads[at], 17)
    end
    local stands, contents_ = get_all('s:', bodies), get_all('c:', bodies)
    local lease_plain = #bodies > 0 and plain_leases(queue, info, rank, call, deadline)
    for place_, body in ipairs(bodies) do
      local raw, content = stands[place_], contents_[place_]
      if not raw then
        leases[#leases + 1] = lease_plain(heads[2 * place_ - 1], heads[2 * place_], content)
      else
        local stand = cmsgpack.unpack(raw)
        -- An expired one is given to nobody any more: it only waits for its end.
        if not is_over(stand.e) then
          leases[#leases + 1] = lease(queue, info, body, stand, content, call, deadline)
        end
      end
    end
    if #heads / 2 < wanted then
      rank = rank - 1
    end
  end
  if #leases > 0 then
    add(queue, 'pending', -#leases)
    add(queue, 'active', #leases)
    leased_from[queue] = true
    settle()
  end
  if #leases == limit then
    return {0, -1, leases}
  end
  local waiting, active = first_at('waiting:' .. queue), first_at('leases:' .. queue)
  return {0, math.min(waiting or active or -1, active or waiting or -1), leases}
end
