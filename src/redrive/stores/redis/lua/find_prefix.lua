-- Finds items by the first digits of their ids, among the next items of a queue.
-- KEYS[1] meta, by which a cluster finds the server of the namespace
-- ARGV[1] root: the start of every key    ARGV[2] queue    ARGV[3] digits
-- ARGV[4] lowest number    ARGV[5] highest number    ARGV[6] number of items to examine
--   all:Q        bodies by the number of the id; a body is the number of the first id
--   c:B          content, with the suffix of the first id in its characters 17 to 32
--   s:B          state, with the later ids as texts
-- Returns {number of the last item, or false after the last one; bodies that may match}. The caller compares the ids.

local root, digits, last = ARGV[1], ARGV[3], false
local suffix_digits = string.sub(digits, 1, 16)
local range = redis.call('ZRANGEBYSCORE', root .. 'all:' .. ARGV[2], ARGV[4], ARGV[5], 'WITHSCORES', 'LIMIT', 0, ARGV[6])
local found = {}
for at = 1, #range, 2 do
  local body = range[at]
  local matches
  if tonumber(range[at + 1]) == tonumber(body) then
    local suffix = redis.call('GETRANGE', root .. 'c:' .. body, 16, 15 + #suffix_digits)
    matches = suffix == suffix_digits
  else
    local state = redis.call('GET', root .. 's:' .. body)
    matches = state and string.find(state, digits, 1, true)
  end
  if matches then
    found[#found + 1] = body
  end
end
if #range == 2 * tonumber(ARGV[6]) then
  last = range[#range]
end
return {last, found}
