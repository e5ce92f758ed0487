-- Reads the items that a worker has leased.
-- KEYS[1] meta, by which a cluster finds the server of the namespace
-- ARGV[1] root: the start of every key    ARGV[2] worker    ARGV[3] limit
--   info         hash with a field for each queue
--   leases:Q     by deadline; members are seq and body
--   c:B          content    s:B state: `w` worker, `L` leased_at, `n` seq
-- Returns {body, content, state} of each, in the order in which they were leased.

local root, worker, leased = ARGV[1], ARGV[2], {}

local function read_page(members, first, last)
  local keys = {}
  for at = first, last do
    keys[#keys + 1] = root .. 's:' .. string.sub(members[at], 17)
  end
  for at, raw in ipairs(redis.call('MGET', unpack(keys))) do
    -- Most belong to other workers, and need not be unpacked.
    local is_read, state = pcall(cmsgpack.unpack, raw and string.find(raw, worker, 1, true) and raw or '')
    if is_read and type(state) == 'table' and state.w == worker then
      leased[#leased + 1] = {state.L, state.n, string.sub(members[first + at - 1], 17), raw}
    end
  end
end

for _, queue in ipairs(redis.call('HKEYS', root .. 'info')) do
  local members = redis.call('ZRANGE', root .. 'leases:' .. queue, 0, -1)
  for first = 1, #members, 1000 do
    read_page(members, first, math.min(first + 999, #members))
  end
end
table.sort(leased, function(one, other)
  if one[1] ~= other[1] then
    return one[1] < other[1]
  end
  return one[2] < other[2]
end)
local answer = {}
for at = 1, math.min(#leased, tonumber(ARGV[3])) do
  local body, raw = leased[at][3], leased[at][4]
  answer[at] = {body, redis.call('GET', root .. 'c:' .. body), raw}
end
return answer
