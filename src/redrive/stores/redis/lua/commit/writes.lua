-- Numbers, settings, counts, and writes that are gathered and sent together.
-- Defines: draw, digits, now_digits, hexadecimal, number_of; info_of, add; gathered, add_to, take_from, in_chunks,
-- settle, get_all.

local function draw()
  last = math.max(last + 1, now)
  drawn = true
  return last
end

local function digits(number)
  return string.format('%016.0f', number)
end

local now_digits = digits(now)

-- The last 16 digits of the id that a number of ours stands in.
local function hexadecimal(number)
  return string.format('%08x%08x', math.floor(number / 2097152), (number % 2097152) * 2048)
end

local function number_of(id)
  return tonumber(string.sub(id, 17, 24), 16) * 2097152 + math.floor(tonumber(string.sub(id, 25, 32), 16) / 2048)
end

local function info_of(queue)
  local info = infos[queue]
  if info == nil then
    local raw = redis.call('HGET', root .. 'info', queue)
    info = raw and cmsgpack.unpack(raw) or false
    infos[queue] = info
  end
  return info
end

local function add(queue, what, difference)
  local of = counts[queue]
  if not of then
    of = {}
    counts[queue] = of
  end
  of[what] = (of[what] or 0) + difference
end

local function gathered(kinds, kind)
  local list = kinds[kind]
  if not list then
    list = {}
    kinds[kind] = list
  end
  return list
end

local function add_to(kind, score, member)
  local list = gathered(sets, kind)
  list[#list + 1] = score
  list[#list + 1] = member
end

local function take_from(kind, member)
  local list = gathered(taken, kind)
  list[#list + 1] = member
end

local function in_chunks(list, run)
  for at = 1, #list, 1000 do
    run(unpack(list, at, math.min(at + 999, #list)))
  end
end

-- What frees memory comes first: a full memory refuses nothing after it.
local function settle()
  for kind, list in pairs(taken) do
    in_chunks(list, function(...) redis.call('ZREM', root .. kind, ...) end)
  end
  in_chunks(keys_gone, function(...) redis.call('DEL', ...) end)
  in_chunks(contents, function(...) redis.call('MSET', ...) end)
  for kind, list in pairs(sets) do
    in_chunks(list, function(...) redis.call('ZADD', root .. kind, ...) end)
  end
  contents, sets, taken, keys_gone = {}, {}, {}, {}
end

-- The values of some keys that begin alike, one for each, or false.
local function get_all(kind, bodies)
  local keys, values = {}, {}
  for at, body in ipairs(bodies) do
    keys[at] = root .. kind .. body
  end
  in_chunks(keys, function(...)
    for _, value in ipairs(redis.call('MGET', ...)) do
      values[#values + 1] = value
    end
  end)
  return values
end
