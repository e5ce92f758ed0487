-- Puts.
-- Defines: check_put, write_put.
-- A put is {queue, items}, where an item is {argument, priority, bytes, options}; or, if no item has options and all
-- have one priority, {queue, first argument, count, priority, bytes of the largest, whether it is a run: the puts of
-- several calls}.
-- Options: `a` enqueue_at, `d` delay, `x` expire_timeout, `u` expire_at, `h` holders, `k` idempotency_key,
-- `g` digest of the payload.

-- Returns how many items of a queue count for its max_size, with the changes of this script.
local function size_of(queue)
  local of, size = counts[queue] or {}, 0
  for _, status in ipairs({'pending', 'failed', 'active'}) do
    size = size + (of[status] or 0)
  end
  for _, stored in ipairs(redis.call('HMGET', root .. 'counts:' .. queue, 'pending', 'failed', 'active')) do
    size = size + tonumber(stored or 0)
  end
  return size
end

-- Maximum time for which the key of an ended item is stored: `ENDED_KEY_RETENTION` in contract/base.py.
local ENDED_KEY_RETENTION = 86400000000

-- Returns whether an entry of keys:Q is known: until it expires, or while its item exists and is not completed.
-- `completes` is the body of the item that the same call completes, or nil.
local function is_known(entry, completes)
  local expires_at = tonumber(string.sub(entry, 97))
  if expires_at > 0 then
    return expires_at > now
  end
  local body = digits(number_of(entry))
  if body == completes then
    return false
  end
  flush() -- the item may have been put or removed by this script
  if redis.call('GETRANGE', root .. 'c:' .. body, 16, 31) ~= string.sub(entry, 1, 16) or is_removed(body) then
    return false
  end
  local state = redis.call('GET', root .. 's:' .. body)
  return not state or unpack_state(state).s ~= 'completed'
end

-- Returns nil, or the refusal of a put. `growth` (items by queue) and `keys` (idempotency keys) are those of the puts
-- that were checked before and belong to the same call.
local function check_put(put, growth, keys, completes)
  if memory_full then
    return {'memory'}
  end
  local queue = put[1]
  local info = info_of(queue)
  if not info then
    return {'queue', queue}
  end
  local adding = 0
  if put[3] then
    if put[5] > info.b then
      return {'large', info.b}
    end
    adding = put[3]
  end
  for _, item in ipairs(put[3] and {} or put[2]) do
    if item[3] > info.b then
      return {'bytes', item[3], info.b}
    end
    local options, known = item[4], nil
    if options and options.k then
      local field = queue .. '\0' .. options.k
      local raw = redis.call('HGET', root .. 'keys:' .. queue, options.k)
      if raw and is_known(raw, completes) then
        if string.sub(raw, 33, 96) ~= options.g then
          return {'key', queue, options.k, string.sub(raw, 1, 32)}
        end
        known = string.sub(raw, 1, 32)
      elseif keys[field] then
        if keys[field][1] ~= options.g then
          return {'key', queue, options.k, ''}
        end
        known = keys[field]
      else
        keys[field] = {options.g, item}
      end
      options.known = known
    end
    if not known then
      adding = adding + 1
    end
  end
  if info.m and adding > 0 then
    local size = size_of(queue) + (growth[queue] or 0)
    if size + adding > info.m then
      return {'full', queue, size, info.m, adding}
    end
  end
  growth[queue] = (growth[queue] or 0) + adding
end

local function write_item(queue, info, item)
  local number = allocate_number()
  local body = digits(number)
  local content, options = ARGV[item[1]], item[4]
  local ready_at, expire, deadline = now, info.e, nil
  string_writes[#string_writes + 1] = root .. 'c:' .. body
  string_writes[#string_writes + 1] = now_digits .. content
  if options then
    if options.a then
      ready_at = math.max(now, options.a)
    elseif options.d then
      ready_at = now + options.d
    end
    expire, deadline = options.x or expire, options.u
  end
  if expire and not deadline then
    deadline = now + expire
  end
  if options or deadline then
    local state = {q = queue, n = number, r = ready_at, p = item[2], e = deadline, h = options and options.h}
    save_state(body, state)
    index_item(body, state)
  else
    add_to_set('ready:' .. queue .. ':' .. item[2], ready_at, body .. body)
    arrivals[queue] = (arrivals[queue] or 0) + 1
  end
  add_to_set('all:' .. queue, number, body)
  add_count(queue, 'pending', 1)
  add_count(queue, 'put_total', 1)
  if options and options.k then
    local id, expires_at = string.sub(content, 1, 16) .. hexadecimal(number), info.i > 0 and now + info.i or 0
    redis.call('HSET', root .. 'keys:' .. queue, options.k, id .. options.g .. digits(expires_at))
    add_to_set('key_expiry:' .. queue, expires_at > 0 and expires_at or now + ENDED_KEY_RETENTION, options.k)
    item.id = id
  end
  if info.f.put then
    add_feed_entry('put', queue, string.sub(content, 1, 16) .. hexadecimal(number))
  end
  return body
end

-- Writes items without options. Returns the number of the first; the others have the numbers after it.
local function write_plain_items(queue, argument, count, priority)
  local ready = list_of(set_additions, 'ready:' .. queue .. ':' .. priority)
  local all = list_of(set_additions, 'all:' .. queue)
  local first = math.max(last_number + 1, now)
  for position = 0, count - 1 do
    local body = digits(first + position)
    string_writes[#string_writes + 1] = root .. 'c:' .. body
    string_writes[#string_writes + 1] = now_digits .. ARGV[argument + position]
    ready[#ready + 1] = now
    ready[#ready + 1] = body .. body
    all[#all + 1] = first + position
    all[#all + 1] = body
  end
  last_number, is_number_allocated = first + count - 1, true
  add_count(queue, 'pending', count)
  add_count(queue, 'put_total', count)
  arrivals[queue] = (arrivals[queue] or 0) + count
  return first
end

-- Returns for each item its body, or the id of an item with its idempotency key; or what write_plain_items returns.
local function write_put(put)
  local queue, written, items = put[1], {}, put[2]
  local info = info_of(queue)
  if put[3] then
    if not info.e and not info.f.put then
      return write_plain_items(queue, put[2], put[3], put[4])
    end
    items = {}
    for position = 1, put[3] do
      items[position] = {put[2] + position - 1, put[4], 0}
    end
  end
  for position, item in ipairs(items) do
    local known = item[4] and item[4].known
    if not known then
      written[position] = write_item(queue, info, item)
    elseif type(known) == 'table' then
      written[position] = known[2].id
    else
      written[position] = known
    end
  end
  return written
end
