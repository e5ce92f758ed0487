-- Completions.
-- Defines: leave_group, remove, keep_result; complete, complete_plainly.

-- A dead letter that is one no longer.
local function leave_group(body, stand)
  local key, hour = root .. 'groups:' .. stand.q, stand.G - stand.G % 3600000000
  local figures = cmsgpack.unpack(redis.call('HGET', key, stand.g))
  redis.call('ZREM', root .. 'dead_letters:' .. stand.q, body)
  redis.call('ZREM', root .. 'group:' .. stand.q .. ':' .. stand.g, body)
  add(stand.q, 'dead_letters', -1)
  figures[1] = figures[1] - 1
  if figures[1] == 0 then
    redis.call('HDEL', key, stand.g)
    return
  end
  local left = figures[4][hour] - 1
  figures[4][hour] = left > 0 and left or nil
  redis.call('HSET', key, stand.g, cmsgpack.pack(figures))
end

local function remove(body, stand, id)
  gone[body] = true
  take_from('all:' .. stand.q, body)
  for _, later in ipairs(stand.i or {}) do
    redis.call('DEL', root .. 'o:' .. digits(number_of(later)))
  end
  if stand.S then
    local key = root .. 'sources:' .. stand.q
    local source = redis.call('HGET', key, stand.S)
    if source and string.sub(source, 1, 32) == id and tonumber(string.sub(source, 33)) <= now then
      redis.call('HDEL', key, stand.S)
    end
  end
  for _, kind in ipairs(stand.k and {'c:', 's:', 'h:', 'd:', 'w:', 'y:'} or {'c:', 's:'}) do
    keys_gone[#keys_gone + 1] = root .. kind .. body
  end
end

-- A result that is kept for a time of its own, under every id that the item had.
local function keep_result(body, stand, id, result, until_)
  local ids = {id}
  if stand.i and #stand.i > 0 then
    ids = {string.sub(redis.call('GET', root .. 'c:' .. body), 17, 32) .. hexadecimal(body), unpack(stand.i)}
  end
  for _, each in ipairs(ids) do
    redis.call('SET', root .. 'result:' .. each, digits(until_) .. result)
    add_to('result_expiry', until_, each)
  end
end

-- {'complete', number, key, id, queue or false, argument of the result or 0, bytes of it, for how long it is kept or 0,
-- puts}
local function complete(call)
  local body, stand = leased(call[2], call[3], call[5])
  if not body then
    return stand
  end
  local queue, growth, keys = stand.q, {}, {}
  local info = info_of(queue)
  if call[7] > info.b then
    return {3, 'result', call[7], info.b}
  end
  growth[queue] = -1
  for _, put in ipairs(call[9]) do
    local refused = check_put(put, growth, keys)
    if refused then
      return {3, unpack(refused)}
    end
  end
  take_from('leases:' .. queue, digits(stand.n) .. body)
  end_lease(body, stand)
  if call[8] > 0 then
    keep_result(body, stand, call[4], ARGV[call[6]], now + call[8])
  end
  if stand.m then
    leave_group(body, stand)
  end
  local status = ''
  if info.k == 0 then
    remove(body, stand, call[4])
  else
    status, stand.s, stand.C = 'completed', 'completed', now
    if call[6] ~= 0 then
      redis.call('SET', root .. 'y:' .. body, ARGV[call[6]])
      stand.k = true
    end
    save(body, stand)
    add_to('completed:' .. queue, now, body)
    add(queue, 'completed', 1)
  end
  add(queue, 'completed_total', 1)
  for _, put in ipairs(call[9]) do
    write_put(put)
  end
  if info.f.completed then
    tell('completed', queue, call[4])
  end
  return settled(stand, status)
end

-- A completion with nothing to it is the digits of the number, the key and the id as one text, and behind them the queue
-- where one is named. Gives the queue, where the item is gone now and this was its first delivery.
local function complete_plainly(call)
  local number, key, named = string.sub(call, 1, 16), string.sub(call, 17, 32), #call > 64 and string.sub(call, 65)
  local raw = fetched[number]
  if not raw or gone[number] then
    return complete({'complete', number, key, string.sub(call, 33, 64), named, 0, 0, 0, {}})
  end
  local stand = cmsgpack.unpack(raw)
  local queue = stand.q
  local info = info_of(queue)
  local is_plain = stand.t == key and stand.d == 1 and stand.a == 1 and info.k == 0 and not info.f.completed
  if not is_plain or stand.k or stand.m or stand.i or stand.S or (named and named ~= queue) then
    return complete({'complete', number, key, string.sub(call, 33, 64), named, 0, 0, 0, {}})
  end
  fetched[number] = nil
  gone[number] = true
  take_from('leases:' .. queue, digits(stand.n) .. number)
  take_from('all:' .. queue, number)
  keys_gone[#keys_gone + 1] = root .. 'c:' .. number
  keys_gone[#keys_gone + 1] = root .. 's:' .. number
  add(queue, 'active', -1)
  add(queue, 'completed_total', 1)
  return queue
end
