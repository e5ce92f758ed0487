-- Reads the items that a worker holds.
-- KEYS[1] meta, which says on which server the namespace is
-- ARGV[1] the beginning of every key    ARGV[2] the worker    ARGV[3] how many at most
--   info         queue → what is needed of its settings
--   leases:Q     by deadline; members are seq and body
--   c:B          content    s:B how the item stands: `w` its worker, `L` leased at, `n` seq
-- Answers {body, content, how it stands} of each, those leased first first.

local root, worker, held = ARGV[1], ARGV[2], {}

local function look(members, first, last)
  local keys = {}
  for at = first, last do
    keys[#keys + 1] = root .. 's:' .. string.sub(members[at], 17)
  end
  for at, raw in ipairs(redis.call('MGET', unpack(keys))) do
    -- Most are somebody else's, and need not be read further.
    local stand = raw and string.find(raw, worker, 1, true) and cmsgpack.unpack(raw)
    if stand and stand.w == worker then
      held[#held + 1] = {stand.L, stand.n, string.sub(members[first + at - 1], 17), raw}
    end
  end
end

for _, queue in ipairs(redis.call('HKEYS', root .. 'info')) do
  local members = redis.call('ZRANGE', root .. 'leases:' .. queue, 0, -1)
  for first = 1, #members, 1000 do
    look(members, first, math.min(first + 999, #members))
  end
end
table.sort(held, function(one, other)
  if one[1] ~= other[1] then
    return one[1] < other[1]
  end
  return one[2] < other[2]
end)
local answer = {}
for at = 1, math.min(#held, tonumber(ARGV[3])) do
  local body, raw = held[at][3], held[at][4]
  answer[at] = {body, redis.call('GET', root .. 'c:' .. body), raw}
end
return answer
