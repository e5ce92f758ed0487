-- Finds items of a queue that are not whole, among the next members of one of its sorted sets, all at one instant.
-- KEYS[1] meta, by which a cluster finds the server of the namespace
-- ARGV[1] root: the start of every key    ARGV[2] queue    ARGV[3] key of the sorted set    ARGV[4] cursor
-- ARGV[5] number of members to examine, about    ARGV[6] instant, or 0 for that of the server
--   c:B s:B      content and state; the names are in codec.py
--   keys.py has the sorted sets
-- Returns {next cursor, members without content, members whose state cannot be read, items that are not in every sorted
-- set that their state calls for}. The last two are only found by `all`.

local root, queue = ARGV[1], ARGV[2]
local time = redis.call('TIME')
local now = ARGV[6] ~= '0' and tonumber(ARGV[6]) or time[1] * 1000000 + time[2]
local likely_rank = 5

local function is_in(set, member)
  return redis.call('ZSCORE', root .. set, member)
end

local function is_ready(rank, member)
  return is_in('ready:' .. queue .. ':' .. rank, member)
end

-- An item that waits since its put has no state, and its content is not read here.
local function is_ready_at_any_rank(member)
  if is_ready(likely_rank, member) then
    return true
  end
  for rank = 0, 9 do
    if is_ready(rank, member) then
      likely_rank = rank
      return true
    end
  end
  return false
end

local function is_filed_as_work(body, state)
  if state.h then
    for _, holder in ipairs(type(state.h) == 'table' and state.h or {{state.h}}) do
      if not is_in('held:' .. holder[1], body) then
        return false
      end
    end
    return true
  end
  -- A lease takes an expired item out of the ready ones, and leaves it to its expiry.
  return is_in('waiting:' .. queue, body)
    or is_ready(state.p, string.format('%016.0f', state.n) .. body)
    or (state.e and state.e <= now and is_in('expiring:' .. queue, body))
end

local function is_in_place(body, state)
  local status = state.s or 'pending'
  if state.q ~= queue then
    return false
  end
  local is_work = status == 'pending' or status == 'failed'
  if status == 'dead' or state.R or (state.m and (is_work or status == 'active' or status == 'moving')) then
    if not is_in('dead_letters:' .. queue, body) or not is_in('group:' .. queue .. ':' .. (state.g or ''), body) then
      return false
    end
  end
  if is_work then
    return (not state.e or is_in('expiring:' .. queue, body)) and is_filed_as_work(body, state)
  elseif status == 'active' then
    return is_in('leases:' .. queue, string.format('%016.0f', state.n) .. body)
  elseif status == 'moving' then
    return type(state.P) == 'table' and is_in('moving:' .. state.P.to, body)
  elseif status == 'archived' then
    return is_in('archived_dead_letters:' .. queue, body)
      and (is_in('archived:' .. queue, body) or is_in('dropped:' .. queue, body))
  end
  return (status == 'completed' or status == 'dead') and is_in(status .. ':' .. queue, body)
end

local without_content, without_state, misplaced = 0, 0, 0
local page = redis.call('ZSCAN', ARGV[3], ARGV[4], 'COUNT', ARGV[5])
for at = 1, #page[2], 2 do
  local body = string.sub(page[2][at], -16)
  if redis.call('EXISTS', root .. 'c:' .. body) == 0 then
    without_content = without_content + 1
  elseif ARGV[3] == root .. 'all:' .. queue then
    local raw = redis.call('GET', root .. 's:' .. body)
    local is_read, state = pcall(cmsgpack.unpack, raw or '')
    if not raw then
      misplaced = misplaced + (is_ready_at_any_rank(body .. body) and 0 or 1)
    elseif not is_read or type(state) ~= 'table' or not (state.q and state.p and state.n and state.r) then
      without_state = without_state + 1
    else
      -- Fields of a damaged state may have any type.
      local is_checked, is_whole = pcall(is_in_place, body, state)
      misplaced = misplaced + (is_checked and is_whole and 0 or 1)
    end
  end
end
return {page[1], without_content, without_state, misplaced}
