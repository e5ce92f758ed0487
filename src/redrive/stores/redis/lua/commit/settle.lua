-- Ends of deliveries that leave the item in its queue.
-- Defines: is_removed, leased, settled, end_lease, write_history; retry, give_back, extend.
-- A call is {kind, number, key of the token, id, …}.

-- Whether an item is of a deleted queue, and has yet to be swept.
local function is_removed(body)
  for _, number in ipairs(redis.call('LRANGE', root .. 'removed', 0, -1)) do
    if redis.call('ZSCORE', root .. 'removed:' .. number, body) then
      return true
    end
  end
  return false
end

-- The body and the stand of the item that is active under a token, in that queue unless it is false; or nil, and the
-- answer that says why not.
local function leased(number, key, queue)
  local body = number
  if gone[body] then
    return nil, {0, ''}
  end
  local raw = fetched[body]
  if raw == nil then
    raw = redis.call('GET', root .. 's:' .. body)
  end
  fetched[body] = nil
  if not raw then
    if redis.call('EXISTS', root .. 'c:' .. body) == 1 then
      return nil, {0, is_removed(body) and '' or 'pending'}
    end
    body = redis.call('GET', root .. 'o:' .. number)
    raw = body and not gone[body] and redis.call('GET', root .. 's:' .. body)
    if not raw then
      return nil, {0, ''}
    end
  end
  local stand = cmsgpack.unpack(raw)
  if stand.t ~= key then
    return nil, {0, is_removed(body) and '' or stand.s or 'pending'}
  end
  if queue and queue ~= stand.q then
    return nil, {4, stand.q}
  end
  return body, stand
end

local function settled(stand, status, ready_at)
  return {
    1, stand.q, status, stand.d or 0, stand.a or 0, stand.f or 0, stand.l or 0, stand.v or 0, ready_at or -1,
  }
end

local function end_lease(body, stand)
  add(stand.q, 'active', -1)
  stand.t, stand.w, stand.L, stand.D = nil, nil, nil, nil
end

-- The first 5 rows and the last 45; those between are only counted.
local function write_history(body, stand, worker, told)
  local key = root .. 'h:' .. body
  local head = now_digits .. string.format('%010.0f%04d%04d', stand.d or 0, #worker, #stand.q)
  local row = head .. worker .. stand.q .. told
  stand.k = true
  if redis.call('RPUSH', key, row) > 50 then
    redis.call('LSET', key, 5, '')
    redis.call('LREM', key, 1, '')
    stand.o = (stand.o or 0) + 1
  end
end

-- {'retry', number, key, id, ending, version, status, delay, argument of the row of the history, title or false, at once}
local function retry(call)
  local body, stand = leased(call[2], call[3], false)
  if not body then
    return stand
  end
  local queue, ending, status = stand.q, call[5], call[7]
  if ending == 'lost' and not call[11] and stand.D > now then
    return {0, 'active'}
  end
  if info_of(queue).v ~= call[6] then
    return {2, redis.call('HGET', root .. 'queues', queue)}
  end
  local worker = stand.w or ''
  redis.call('ZREM', root .. 'leases:' .. stand.q, digits(stand.n) .. body)
  end_lease(body, stand)
  if ending == 'failed' then
    stand.f = (stand.f or 0) + 1
    add(queue, 'failed_total', 1)
  elseif ending == 'lost' then
    stand.l = (stand.l or 0) + 1
  end
  write_history(body, stand, worker, ARGV[call[9]])
  stand.s, stand.r, stand.n = status, now + call[8], draw()
  save(body, stand)
  place(body, stand)
  add(queue, status, 1)
  tell(ending, queue, call[4], call[10] or nil)
  return settled(stand, status, stand.r)
end

-- {'return', number, key, id, queue or false, argument of the row of the history or 0, note or false}
local function give_back(call)
  local body, stand = leased(call[2], call[3], call[5])
  if not body then
    return stand
  end
  local worker = stand.w or ''
  redis.call('ZREM', root .. 'leases:' .. stand.q, digits(stand.n) .. body)
  end_lease(body, stand)
  stand.s, stand.a = 'pending', math.max(0, (stand.a or 0) - 1)
  if call[6] ~= 0 then
    write_history(body, stand, worker, ARGV[call[6]])
  end
  save(body, stand)
  place(body, stand)
  add(stand.q, 'pending', 1)
  if call[7] then
    tell('returned', stand.q, call[4], call[7])
  end
  return settled(stand, 'pending', stand.r)
end

-- {'extend', number, key, id, queue or false, timeout or -1}
local function extend(call)
  local body, stand = leased(call[2], call[3], call[5])
  if not body then
    return stand
  end
  stand.D = now + (call[6] >= 0 and call[6] or info_of(stand.q).t)
  save(body, stand)
  redis.call('ZADD', root .. 'leases:' .. stand.q, stand.D, digits(stand.n) .. body)
  return {1, stand.D}
end
