-- Reads all stored data of items, by the numbers of their ids or in ranges of sorted sets.
-- KEYS[1] meta, by which a cluster finds the server of the namespace
-- ARGV[1] root: the start of every key    ARGV[2] 1: with search words    ARGV[3] 1: also items of deleted queues
-- ARGV[4] count of numbers, then the numbers
-- then ranges: key, 'up' or 'down', lowest score, highest score, offset, limit
--   c:B content    s:B state    h:B history    d:B deaths    w:B search words    y:B result    o:N body of a later id
--   removed, removed:N    numbers of deletions of queues; bodies of the items of one, which no longer exist for readers
-- Returns {for each number its body or false, for each range its members and scores, bodies, records}. A member is a
-- body, or a seq and a body, 16 digits each.

local root, words = ARGV[1], ARGV[2] == '1'
local found, ranges, bodies, records, seen = {}, {}, {}, {}, {}

local lists = ARGV[3] == '1' and {} or redis.call('LRANGE', root .. 'removed', 0, -1)

local function is_removed(body)
  for _, number in ipairs(lists) do
    if redis.call('ZSCORE', root .. 'removed:' .. number, body) then
      return true
    end
  end
  return false
end

local function read(body)
  if seen[body] ~= nil then
    return seen[body]
  end
  local content = not is_removed(body) and redis.call('GET', root .. 'c:' .. body)
  seen[body] = content and true or false
  if content then
    bodies[#bodies + 1] = body
    records[#records + 1] = {
      content,
      redis.call('GET', root .. 's:' .. body),
      redis.call('LRANGE', root .. 'h:' .. body, 0, -1),
      redis.call('LRANGE', root .. 'd:' .. body, 0, -1),
      redis.call('GET', root .. 'y:' .. body),
      words and redis.call('GET', root .. 'w:' .. body),
    }
  end
  return seen[body]
end

local count = tonumber(ARGV[4])
for at = 5, 4 + count do
  local number = ARGV[at]
  local body = number
  if not read(body) then
    body = redis.call('GET', root .. 'o:' .. number)
  end
  found[#found + 1] = body and read(body) and body
end
for at = 5 + count, #ARGV, 6 do
  local key, way, low, high = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  local first, most = ARGV[at + 4], ARGV[at + 5]
  local range
  if way == 'up' then
    range = redis.call('ZRANGEBYSCORE', key, low, high, 'WITHSCORES', 'LIMIT', first, most)
  else
    range = redis.call('ZREVRANGEBYSCORE', key, high, low, 'WITHSCORES', 'LIMIT', first, most)
  end
  for position = 1, #range, 2 do
    read(string.sub(range[position], -16))
  end
  ranges[#ranges + 1] = range
end
return {found, ranges, bodies, records}
