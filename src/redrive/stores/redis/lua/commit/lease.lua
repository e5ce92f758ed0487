-- Promotions of items that are due, and leases.
-- Defines: promote, first_score, is_past, lease_items.

-- Makes due items of a queue ready. Returns how many.
local function promote_due(queue, limit)
  local due = redis.call('ZRANGEBYSCORE', root .. 'waiting:' .. queue, '-inf', now, 'LIMIT', 0, limit)
  for at, raw in ipairs(get_all('s:', due)) do
    local body, state = due[at], unpack_state(raw)
    remove_from_set('waiting:' .. queue, body)
    if state.q then
      add_to_set('ready:' .. queue .. ':' .. state.p, state.r, digits(state.n) .. body)
    end
    if state.s == 'failed' then
      state.s = 'pending'
      save_settled_state(body, state)
      add_count(queue, 'failed', -1)
      add_count(queue, 'pending', 1)
    end
  end
  if #due > 0 then
    arrivals[queue] = (arrivals[queue] or 0) + #due
    flush()
  end
  return #due
end

local function promote(limit)
  local count = 0
  for _, queue in ipairs(redis.call('HKEYS', root .. 'info')) do
    if count < limit then
      count = count + promote_due(queue, limit - count)
    end
  end
  return count
end

-- Returns the lowest score of a sorted set, or nil.
local function first_score(kind)
  local head = redis.call('ZRANGE', root .. kind, 0, 0, 'WITHSCORES')
  return head[2] and tonumber(head[2])
end

local function is_past(instant)
  return instant and instant <= now
end

local function token_key(call, body)
  return string.sub(redis.sha1hex(call[6] .. body), 1, 16)
end

local function lease_item(queue, info, body, state, content, call, deadline)
  if state.e then
    redis.call('ZREM', root .. 'expiring:' .. queue, body)
  end
  if state.m then
    redis.call('ZREM', root .. 'dead:' .. queue, body)
  end
  state.s, state.d, state.a = 'active', (state.d or 0) + 1, (state.a or 0) + 1
  state.t, state.w = token_key(call, body), call[3] or nil
  state.L, state.D, state.F = now, deadline, state.F or now
  local packed = cmsgpack.pack(state)
  string_writes[#string_writes + 1] = root .. 's:' .. body
  string_writes[#string_writes + 1] = packed
  add_to_set('leases:' .. queue, deadline, digits(state.n) .. body)
  if info.f.leased then
    add_feed_entry('leased', queue, state.i and state.i[#state.i] or string.sub(content, 17, 32) .. hexadecimal(body))
  end
  return {body, content, packed}
end

-- Returns a function that leases items without a state. Their new states differ in three fields, which are appended to
-- the others. In MessagePack a map of up to 15 fields starts with 128 plus their number, a string of one letter with
-- 161, and one of 16 letters with 176.
local function plain_lease_function(queue, info, rank, call, deadline)
  local same = {q = queue, p = rank, s = 'active', d = 1, a = 1, w = call[3] or nil, L = now, D = deadline, F = now}
  local packed = cmsgpack.pack(same)
  local head = string.char(string.byte(packed) + 3) .. string.sub(packed, 2) .. '\161n'
  local leased = list_of(set_additions, 'leases:' .. queue)
  return function(member, ready_at, content)
    local seq, body = string.sub(member, 1, 16), string.sub(member, 17)
    local numbers = cmsgpack.pack(tonumber(seq)) .. '\161r' .. cmsgpack.pack(tonumber(ready_at))
    local state = head .. numbers .. '\161t\176' .. token_key(call, body)
    string_writes[#string_writes + 1] = root .. 's:' .. body
    string_writes[#string_writes + 1] = state
    leased[#leased + 1] = deadline
    leased[#leased + 1] = member
    if info.f.leased then
      add_feed_entry('leased', queue, string.sub(content, 17, 32) .. hexadecimal(body))
    end
    return {body, content, state}
  end
end

-- {queue, limit, worker or false, timeout or -1, whether to ignore overdue items, seed of the keys of tokens}. Returns
-- false if the queue does not exist, {5} if it is left to the rules because the gates of its queue count leases; else
-- {overdue, next_at or -1, leases}, with next_at only if there are fewer than limit. Leases after one that is left do
-- not depend on it: they are from other queues, or are left too.
local function lease_items(call)
  local queue, limit = call[1], call[2]
  local info = info_of(queue)
  if not info then
    return false
  end
  if info.p or info.a == 0 then
    return {0, -1, {}}
  end
  if info.g and now < info.g then
    return {0, info.g, {}}
  end
  if info.a then
    return {5}
  end
  if not overdue[queue] then
    promote_due(queue, 1000)
    overdue[queue] = {is_past(first_score('leases:' .. queue)) or is_past(first_score('expiring:' .. queue))}
  end
  if not call[5] and overdue[queue][1] then
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
    local states, raw_contents = get_all('s:', bodies), get_all('c:', bodies)
    local lease_plain = #bodies > 0 and plain_lease_function(queue, info, rank, call, deadline)
    for position, body in ipairs(bodies) do
      local raw, content = states[position], raw_contents[position]
      if not raw then
        leases[#leases + 1] = lease_plain(heads[2 * position - 1], heads[2 * position], content)
      else
        local state = unpack_state(raw)
        -- An expired item is not leased. It waits until it is settled. Nor is one whose state is damaged.
        if state.q and not is_past(state.e) then
          leases[#leases + 1] = lease_item(queue, info, body, state, content, call, deadline)
        end
      end
    end
    if #heads / 2 < wanted then
      rank = rank - 1
    end
  end
  if #leases > 0 then
    add_count(queue, 'pending', -#leases)
    add_count(queue, 'active', #leases)
    leased_from[queue] = true
    flush()
  end
  if #leases == limit then
    return {0, -1, leases}
  end
  local waiting, active = first_score('waiting:' .. queue), first_score('leases:' .. queue)
  return {0, math.min(waiting or active or -1, active or waiting or -1), leases}
end
