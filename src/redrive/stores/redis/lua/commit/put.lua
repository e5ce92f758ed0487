-- Puts.
-- Defines: check_put, write_put, and what they need.
-- A put is {queue, items}, where an item is {argument, priority, bytes, options}; or, where nothing has options and all
-- have one priority, {queue, first argument, count, priority, bytes of the largest}.

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

-- Gives nil where it may be put, else what refuses it. `growth` and `keys` are those of puts checked before.
local function check_put(put, growth, keys)
  if full then
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
      if raw and tonumber(string.sub(raw, 97)) > now then
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
  local number = draw()
  local body = digits(number)
  local content, options = ARGV[item[1]], item[4]
  local ready_at, expire, deadline = now, info.e, nil
  contents[#contents + 1] = root .. 'c:' .. body
  contents[#contents + 1] = now_digits .. content
  if options then
    if options.a then
      ready_at = math.max(now, options.a)
    elseif options.d then
      ready_at = now + options.d
    end
    expire = options.x or expire
  end
  if expire then
    deadline = now + expire
  end
  if options or deadline then
    local stand = {q = queue, n = number, r = ready_at, p = item[2], e = deadline, h = options and options.h}
    save(body, stand)
    place(body, stand)
  else
    add_to('ready:' .. queue .. ':' .. item[2], ready_at, body .. body)
    arrivals[queue] = (arrivals[queue] or 0) + 1
  end
  add_to('all:' .. queue, number, body)
  add(queue, 'pending', 1)
  add(queue, 'put_total', 1)
  if options and options.k then
    local id, until_ = string.sub(content, 1, 16) .. hexadecimal(number), now + info.i
    redis.call('HSET', root .. 'keys:' .. queue, options.k, id .. options.g .. digits(until_))
    add_to('key_expiry:' .. queue, until_, options.k)
    item.id = id
  end
  if info.f.put then
    tell('put', queue, string.sub(content, 1, 16) .. hexadecimal(number))
  end
  return body
end

-- Items of which nothing is said but their priority. Gives the number of the first; the others follow it.
local function write_plain(queue, argument, count, priority)
  local ready, all = gathered(sets, 'ready:' .. queue .. ':' .. priority), gathered(sets, 'all:' .. queue)
  local first = math.max(last + 1, now)
  for place_ = 0, count - 1 do
    local body = digits(first + place_)
    contents[#contents + 1] = root .. 'c:' .. body
    contents[#contents + 1] = now_digits .. ARGV[argument + place_]
    ready[#ready + 1] = now
    ready[#ready + 1] = body .. body
    all[#all + 1] = first + place_
    all[#all + 1] = body
  end
  last, drawn = first + count - 1, true
  add(queue, 'pending', count)
  add(queue, 'put_total', count)
  arrivals[queue] = (arrivals[queue] or 0) + count
  return first
end

-- Gives for each item its body, or the id of the one that is there; or the number of the first, where others follow it.
local function write_put(put)
  local queue, written, items = put[1], {}, put[2]
  local info = info_of(queue)
  if put[3] then
    if not info.e and not info.f.put then
      return write_plain(queue, put[2], put[3], put[4])
    end
    items = {}
    for place_ = 1, put[3] do
      items[place_] = {put[2] + place_ - 1, put[4], 0}
    end
  end
  for place_, item in ipairs(items) do
    local known = item[4] and item[4].known
    if not known then
      written[place_] = write_item(queue, info, item)
    elseif type(known) == 'table' then
      written[place_] = known[2].id
    else
      written[place_] = known
    end
  end
  return written
end
