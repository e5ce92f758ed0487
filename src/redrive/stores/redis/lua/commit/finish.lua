-- Carries out the calls by kind, writes the last number and the counts, and answers.
-- Defines nothing for others.

local ends = {complete = complete, retry = retry, ['return'] = give_back, extend = extend}

local put, ended, promoted, given = {}, {}, {}, {}
for at, call in ipairs(plan.p) do
  local refused = check_put(call, {}, {})
  put[at] = refused and {0, refused} or {1, write_put(call)}
end
settle()
if #plan.e > 0 then
  local bodies = {}
  for at, call in ipairs(plan.e) do
    bodies[at] = type(call) == 'string' and string.sub(call, 1, 16) or call[2]
  end
  for at, raw in ipairs(get_all('s:', bodies)) do
    fetched[bodies[at]] = raw
  end
end
for at, call in ipairs(plan.e) do
  if type(call) == 'string' then
    ended[at] = complete_plainly(call)
  else
    ended[at] = ends[call[1]](call)
  end
end
settle()
for at, limit in ipairs(plan.m) do
  promoted[at] = promote(limit)
end
for at, call in ipairs(plan.l) do
  given[at] = lease_items(call)
end

if drawn then
  redis.call('HSET', KEYS[1], 'next', digits(last))
end
for queue, of in pairs(counts) do
  for what, difference in pairs(of) do
    if difference ~= 0 then
      redis.call('HINCRBY', root .. 'counts:' .. queue, what, difference)
    end
  end
end

local function anything_ready(queue)
  for rank = 0, 9 do
    if redis.call('EXISTS', root .. 'ready:' .. queue .. ':' .. rank) == 1 then
      return true
    end
  end
  return is_over(first_at('waiting:' .. queue))
end

local told = {}
for queue, count in pairs(arrivals) do
  local info = info_of(queue)
  if info and not info.p and (not leased_from[queue] or anything_ready(queue)) then
    told[#told + 1] = queue
    told[#told + 1] = count
  end
end
for queue in pairs(retimed) do
  if not arrivals[queue] and not info_of(queue).p then
    told[#told + 1] = queue
    told[#told + 1] = 0
  end
end
return {1, now, put, ended, promoted, given, told}
