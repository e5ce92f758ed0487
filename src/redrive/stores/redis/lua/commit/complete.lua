-- Completions.
-- Defines: complete, complete_plain.

-- Removes all keys of an item.
local function remove_item(body, state, id)
  removed_bodies[body] = true
  remove_from_set('all:' .. state.q, body)
  for _, later in ipairs(state.i or {}) do
    redis.call('DEL', root .. 'o:' .. digits(number_of(later)))
  end
  if state.S then
    local key = root .. 'sources:' .. state.q
    local source = redis.call('HGET', key, state.S)
    if source and string.sub(source, 1, 32) == id and tonumber(string.sub(source, 33)) <= now then
      redis.call('HDEL', key, state.S)
    end
  end
  for _, kind in ipairs(state.k and {'c:', 's:', 'h:', 'd:', 'w:', 'y:'} or {'c:', 's:'}) do
    deleted_keys[#deleted_keys + 1] = root .. kind .. body
  end
end

-- Keeps a result longer than its item, under every id that the item had.
local function keep_result(ids, state, result, expires_at)
  local value = digits(expires_at) .. state.q .. '\0' .. (state.Q or '') .. '\0' .. result
  for _, id in ipairs(ids) do
    redis.call('SET', root .. 'result:' .. id, value)
    add_to_set('result_expiry', expires_at, id)
  end
end

-- {'complete', number, key, id, queue or false, argument of the result or 0, bytes of it, time to keep it or 0,
-- puts}
local function complete(call)
  local body, state = find_leased(call[2], call[3], call[5])
  if not body then
    return state
  end
  local queue, growth, keys = state.q, {}, {}
  local info = info_of(queue)
  if call[7] > info.b then
    return {3, 'result', call[7], info.b}
  end
  growth[queue] = -1
  for _, put in ipairs(call[9]) do
    local refused = check_put(put, growth, keys, body)
    if refused then
      return {3, unpack(refused)}
    end
  end
  end_lease(body, state)
  if call[6] ~= 0 and (call[8] > 0 or info.k > 0) then
    local ids = ids_of(body, state, call[4])
    wake_awaiting(ids)
    if call[8] > 0 then
      keep_result(ids, state, ARGV[call[6]], now + call[8])
    end
  end
  local was_dead_letter = state.m
  if was_dead_letter then
    remove_dead_letter(body, state)
  end
  local status = ''
  if info.k == 0 then
    remove_item(body, state, call[4])
  else
    status, state.s, state.C = 'completed', 'completed', now
    if call[6] ~= 0 then
      redis.call('SET', root .. 'y:' .. body, ARGV[call[6]])
      state.k = true
    end
    save_state(body, state)
    add_to_set('completed:' .. queue, now, body)
    add_count(queue, 'completed', 1)
  end
  add_count(queue, 'completed_total', 1)
  for _, put in ipairs(call[9]) do
    write_put(put)
  end
  local kind = was_dead_letter and 'done' or 'completed'
  if info.f[kind] then
    add_feed_entry(kind, queue, call[4])
  end
  return settled_answer(state, status)
end

-- A completion without result and puts is one text: digits of the number, key, id, and the queue if one is named.
-- Returns the queue if the item is removed and this was its first delivery; else what `complete` returns.
local function complete_plain(call)
  local number, key, named = string.sub(call, 1, 16), string.sub(call, 17, 32), #call > 64 and string.sub(call, 65)
  local raw = fetched_states[number]
  if not raw or removed_bodies[number] then
    return complete({'complete', number, key, string.sub(call, 33, 64), named, 0, 0, 0, {}})
  end
  local state = unpack_state(raw)
  local queue = state.q
  local info = queue and info_of(queue)
  local is_plain = queue and state.t == key and state.d == 1 and state.a == 1 and info.k == 0 and not info.f.completed
  if not is_plain or state.k or state.m or state.i or state.S or (named and named ~= queue) then
    return complete({'complete', number, key, string.sub(call, 33, 64), named, 0, 0, 0, {}})
  end
  fetched_states[number] = nil
  removed_bodies[number] = true
  remove_from_set('leases:' .. queue, digits(state.n) .. number)
  remove_from_set('all:' .. queue, number)
  deleted_keys[#deleted_keys + 1] = root .. 'c:' .. number
  deleted_keys[#deleted_keys + 1] = root .. 's:' .. number
  add_count(queue, 'active', -1)
  add_count(queue, 'completed_total', 1)
  return queue
end
