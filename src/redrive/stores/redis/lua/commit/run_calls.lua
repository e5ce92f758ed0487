-- Executes the calls by kind, writes the last number and the counts, and returns.

local settle_functions = {complete = complete, retry = retry, die = die, ['return'] = return_lease, extend = extend}

local put_results, settle_results, promote_results, lease_results = {}, {}, {}, {}
for at, call in ipairs(calls.p) do
  local refused = not has_left and check_put(call, {}, {})
  if has_left or (refused and call[6]) then
    has_left, put_results[at] = true, {5}
  else
    put_results[at] = refused and {0, refused} or {1, write_put(call)}
  end
end
flush()
if #calls.e > 0 and not has_left then
  local bodies = {}
  for at, call in ipairs(calls.e) do
    bodies[at] = type(call) == 'string' and string.sub(call, 1, 16) or call[2]
  end
  for at, raw in ipairs(get_all('s:', bodies)) do
    fetched_states[bodies[at]] = raw
  end
end
for at, call in ipairs(calls.e) do
  if has_left then
    settle_results[at] = {5}
  elseif type(call) == 'string' then
    settle_results[at] = complete_plain(call)
  else
    settle_results[at] = settle_functions[call[1]](call)
  end
end
flush()
for at, limit in ipairs(calls.m) do
  promote_results[at] = has_left and {5} or promote(limit)
end
for at, call in ipairs(calls.l) do
  lease_results[at] = has_left and {5} or lease_items(call)
end

if is_number_allocated then
  redis.call('HSET', KEYS[1], 'next', digits(last_number))
end
for queue, of in pairs(counts) do
  for what, difference in pairs(of) do
    if difference ~= 0 then
      redis.call('HINCRBY', root .. 'counts:' .. queue, what, difference)
    end
  end
end

local function has_leasable_item(queue)
  for rank = 0, 9 do
    if redis.call('EXISTS', root .. 'ready:' .. queue .. ':' .. rank) == 1 then
      return true
    end
  end
  return is_past(first_score('waiting:' .. queue))
end

local arrived = {}
for queue, count in pairs(arrivals) do
  local info = info_of(queue)
  if info and not info.p and (not leased_from[queue] or has_leasable_item(queue)) then
    arrived[#arrived + 1] = queue
    arrived[#arrived + 1] = count
  end
end
for queue in pairs(retimed) do
  if not arrivals[queue] and not info_of(queue).p then
    arrived[#arrived + 1] = queue
    arrived[#arrived + 1] = 0
  end
end
for topic in pairs(ended) do
  arrived[#arrived + 1] = topic
  arrived[#arrived + 1] = 1
end
return {1, now, put_results, settle_results, promote_results, lease_results, arrived}
