-- Settled deliveries after which the item stays in its queue, and functions that completions share with them.
-- Defines: find_leased, settled_answer, end_lease, check_settle, end_delivery; retry, return_lease, extend.
-- A call is {kind, number in the token, key of the token, id, …}. It returns {0, status or ''} if the lease is lost,
-- {2, queue} if the settings are stale, {3, …} if something else refuses it, {4, queue} if the item is in another
-- queue, {5} if it is left to the rules because the item was leased although it is dead or its death needs more, and
-- {1, …} if it was executed.

-- Returns the body and the state of the item that is leased with a token; or nil, and the answer. `queue` is the queue
-- that it must be in, or false.
local function find_leased(number, key, queue)
  local body = number
  if removed_bodies[body] then
    return nil, {0, ''}
  end
  local raw = fetched_states[body]
  if raw == nil then
    raw = redis.call('GET', root .. 's:' .. body)
  end
  if not raw then
    if redis.call('EXISTS', root .. 'c:' .. body) == 1 then
      return nil, {0, is_removed(body) and '' or 'pending'}
    end
    body = redis.call('GET', root .. 'o:' .. number)
    raw = body and not removed_bodies[body] and (fetched_states[body] or redis.call('GET', root .. 's:' .. body))
    if not raw then
      return nil, {0, ''}
    end
  end
  local state = unpack_state(raw)
  if state.t ~= key then
    return nil, {0, is_removed(body) and '' or state.s or 'pending'}
  end
  if state.R then
    has_left = true
    return nil, {5}
  end
  if queue and queue ~= state.q then
    return nil, {4, state.q}
  end
  return body, state
end

local function settled_answer(state, status, ready_at)
  return {
    1, state.q, status, state.d or 0, state.a or 0, state.f or 0, state.l or 0, state.v or 0, ready_at or -1,
  }
end

-- Ends the lease of an item. Returns the worker, or ''.
local function end_lease(body, state)
  local worker = state.w or ''
  remove_from_set('leases:' .. state.q, digits(state.n) .. body)
  add_count(state.q, 'active', -1)
  state.t, state.w, state.L, state.D = nil, nil, nil, nil
  return worker
end

-- Adds an entry. The first 5 and the last 45 are kept, and the others counted.
local function write_history(body, state, worker, details)
  local key = root .. 'h:' .. body
  local head = now_digits .. string.format('%010.0f%04d%04d', state.d or 0, #worker, #state.q)
  local entry = head .. worker .. state.q .. details
  state.k = true
  if redis.call('RPUSH', key, entry) > 50 then
    redis.call('LSET', key, 5, '')
    redis.call('LREM', key, 1, '')
    state.o = (state.o or 0) + 1
  end
end

-- A call that settles is {kind, number, key, id, ending, version, whether the worker is gone, argument of the history
-- entry, argument of the feed entry, …}. Returns body and state if it is accepted; or nil, and the answer.
local function check_settle(call)
  local body, state = find_leased(call[2], call[3], false)
  if not body then
    return nil, state
  end
  if call[5] == 'lost' and not call[7] and state.D > now then
    return nil, {0, 'active'}
  end
  if info_of(state.q).v ~= call[6] then
    return nil, {2, redis.call('HGET', root .. 'queues', state.q)}
  end
  return body, state
end

-- Ends the lease, counts the outcome, and writes it to the history.
local function end_delivery(call, body, state)
  local ending, worker = call[5], end_lease(body, state)
  if ending == 'failed' then
    state.f = (state.f or 0) + 1
    add_count(state.q, 'failed_total', 1)
  elseif ending == 'lost' then
    state.l = (state.l or 0) + 1
  elseif ending == 'returned' then
    state.a = math.max(0, (state.a or 0) - 1)
  end
  write_history(body, state, worker, ARGV[call[8]])
end

-- {'retry', … as above, status, delay, holders or false}
local function retry(call)
  local body, state = check_settle(call)
  if not body then
    return state
  end
  local queue, status = state.q, call[10]
  end_delivery(call, body, state)
  state.s, state.r, state.n, state.h = status, now + call[11], allocate_number(), call[12] or nil
  save_settled_state(body, state)
  index_item(body, state)
  add_count(queue, status, 1)
  add_packed_feed_entry(call[5], queue, call[4], ARGV[call[9]])
  return settled_answer(state, status, state.r)
end

-- {'return', number, key, id, queue or false, argument of the history entry or 0, note or false}
local function return_lease(call)
  local body, state = find_leased(call[2], call[3], call[5])
  if not body then
    return state
  end
  local worker = end_lease(body, state)
  state.s, state.a = 'pending', math.max(0, (state.a or 0) - 1)
  if call[6] ~= 0 then
    write_history(body, state, worker, ARGV[call[6]])
  end
  save_settled_state(body, state)
  index_item(body, state)
  add_count(state.q, 'pending', 1)
  if call[7] then
    add_feed_entry('returned', state.q, call[4], call[7])
  end
  return settled_answer(state, 'pending', state.r)
end

-- {'extend', number, key, id, queue or false, timeout or -1}
local function extend(call)
  local body, state = find_leased(call[2], call[3], call[5])
  if not body then
    return state
  end
  state.D = now + (call[6] >= 0 and call[6] or info_of(state.q).t)
  save_state(body, state)
  redis.call('ZADD', root .. 'leases:' .. state.q, state.D, digits(state.n) .. body)
  return {1, state.D}
end
