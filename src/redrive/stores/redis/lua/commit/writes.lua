-- Numbers and digits, settings and counts of queues, and buffered writes.
-- Defines: allocate_number, digits, now_digits, hexadecimal, number_of; unpack_or, unpack_state, info_of, add_count; list_of, add_to_set,
-- remove_from_set, flush, get_all; raise_format.

local function allocate_number()
  last_number = math.max(last_number + 1, now)
  is_number_allocated = true
  return last_number
end

local function digits(number)
  return string.format('%016.0f', number)
end

local now_digits = digits(now)

-- Returns the last 16 digits of the id with this number.
local function hexadecimal(number)
  return string.format('%08x%08x', math.floor(number / 2097152), (number % 2097152) * 2048)
end

local function number_of(id)
  return tonumber(string.sub(id, 17, 24), 16) * 2097152 + math.floor(tonumber(string.sub(id, 25, 32), 16) / 2048)
end

-- Returns a value, or the substitute if it is damaged and cannot be read.
local function unpack_or(raw, substitute)
  local is_read, value = pcall(cmsgpack.unpack, raw)
  return is_read and type(value) == 'table' and value or substitute
end

-- Returns the state of an item; an empty one if it is damaged.
local function unpack_state(raw)
  local state = unpack_or(raw, {})
  return state.q and state.p and state.n and state.r and state or {}
end

-- Settings of a queue whose own ones are damaged: it takes items, keeps them, and gives none.
local damaged_info = {v = 0, p = true, t = 60000000, b = 1048576, i = 86400000000, k = 3153600000000000, f = {}}

-- Returns the settings of a queue, or false if it does not exist.
local function info_of(queue)
  local info = infos[queue]
  if info == nil then
    local raw = redis.call('HGET', root .. 'info', queue)
    info = raw and unpack_or(raw, damaged_info) or false
    infos[queue] = info
  end
  return info
end

local function add_count(queue, what, difference)
  local of = counts[queue]
  if not of then
    of = {}
    counts[queue] = of
  end
  of[what] = (of[what] or 0) + difference
end

local function list_of(kinds, kind)
  local list = kinds[kind]
  if not list then
    list = {}
    kinds[kind] = list
  end
  return list
end

local function add_to_set(kind, score, member)
  local list = list_of(set_additions, kind)
  list[#list + 1] = score
  list[#list + 1] = member
end

local function remove_from_set(kind, member)
  local list = list_of(set_removals, kind)
  list[#list + 1] = member
end

local function in_chunks(list, run)
  for at = 1, #list, 1000 do
    run(unpack(list, at, math.min(at + 999, #list)))
  end
end

-- Writes the buffers. Commands that free memory come first: a full server refuses nothing after them.
local function flush()
  for kind, list in pairs(set_removals) do
    in_chunks(list, function(...) redis.call('ZREM', root .. kind, ...) end)
  end
  in_chunks(deleted_keys, function(...) redis.call('DEL', ...) end)
  in_chunks(string_writes, function(...) redis.call('MSET', ...) end)
  for kind, list in pairs(set_additions) do
    in_chunks(list, function(...) redis.call('ZADD', root .. kind, ...) end)
  end
  for queue, groups in pairs(changed_groups) do
    for fingerprint, figures in pairs(groups) do
      if figures[1] > 0 then
        redis.call('HSET', root .. 'groups:' .. queue, fingerprint, cmsgpack.pack(figures))
      else
        redis.call('HDEL', root .. 'groups:' .. queue, fingerprint)
      end
    end
  end
  string_writes, set_additions, set_removals, deleted_keys, changed_groups = {}, {}, {}, {}, {}
end

-- Raises the format of the namespace, because it has data that an older Redrive does not know.
local is_format_raised = false

local function raise_format()
  if not is_format_raised then
    redis.call('HSET', KEYS[1], 'format', calls.v)
    is_format_raised = true
  end
end

-- Returns for each body the value of its key of this kind, or false.
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
