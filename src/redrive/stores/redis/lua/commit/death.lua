-- Dead letters: deaths in place, and functions that completions of dead letters share with them.
-- Defines: ids_of, wake_awaiting, remove_dead_letter; die.

-- Returns every id that an item has or had. `id` is the current one.
local function ids_of(body, state, id)
  if not state.i or #state.i == 0 then
    return {id}
  end
  return {string.sub(redis.call('GET', root .. 'c:' .. body), 17, 32) .. hexadecimal(body), unpack(state.i)}
end

-- Wakes callers that await the end of an item: the topics are those of `redrive.model.ids.result_topic`.
local function wake_awaiting(ids)
  for _, id in ipairs(ids) do
    ended['#' .. string.sub(id, 1, 4)] = true
  end
end

local function hour_of(instant)
  return instant - instant % 3600000000
end

-- Returns the current figures of a group, with the changes of this script: {count, first_at, last_at, counts by hour}.
local function figures_of(queue, fingerprint)
  local groups = list_of(changed_groups, queue)
  local figures = groups[fingerprint]
  if not figures then
    local raw = redis.call('HGET', root .. 'groups:' .. queue, fingerprint)
    figures = raw and unpack_or(raw, false) or {0, now, now, {}}
    groups[fingerprint] = figures
  elseif figures[1] == 0 then
    figures[2], figures[3], figures[4] = now, now, {}
  end
  return figures
end

-- Removes an item from the dead letters of its queue and from its group.
local function remove_dead_letter(body, state)
  local figures, hour = figures_of(state.q, state.g), hour_of(state.G)
  redis.call('ZREM', root .. 'dead_letters:' .. state.q, body)
  redis.call('ZREM', root .. 'group:' .. state.q .. ':' .. state.g, body)
  add_count(state.q, 'dead_letters', -1)
  figures[1] = figures[1] - 1
  local left = figures[4][hour] - 1
  figures[4][hour] = left > 0 and left or nil
end

local function add_dead_letter(body, state)
  local figures, hour = figures_of(state.q, state.g), hour_of(state.G)
  add_to_set('dead_letters:' .. state.q, state.x, body)
  add_to_set('group:' .. state.q .. ':' .. state.g, state.x, body)
  add_to_set('dead:' .. state.q, state.G, body)
  add_count(state.q, 'dead_letters', 1)
  figures[1] = figures[1] + 1
  figures[2], figures[3] = math.min(figures[2], now), math.max(figures[3], now)
  figures[4][hour] = (figures[4][hour] or 0) + 1
end

-- Returns whether the death of an item may have to be answered: its content has the name of the header somewhere.
local function may_ask_for_reply(body)
  return string.find(redis.call('GET', root .. 'c:' .. body), calls.r, 1, true)
end

-- By queue: true if dead letters are found by their words.
local searched = {}

local function is_searched(queue)
  if searched[queue] == nil then
    local settings = unpack_or(redis.call('HGET', root .. 'queues', queue), {}).settings
    searched[queue] = not settings or settings.search ~= false
  end
  return searched[queue]
end

local function write_death(body, state, id, packed)
  local counters = {
    deliveries = state.d or 0,
    attempts = state.a or 0,
    failures = state.f or 0,
    losses = state.l or 0,
    redrives = state.v or 0,
  }
  local rest = '\162at' .. cmsgpack.pack(now) .. '\168counters' .. cmsgpack.pack(counters)
    .. '\175first_leased_at' .. cmsgpack.pack(state.F)
  redis.call('RPUSH', root .. 'd:' .. body, packed .. queue_and_id(state.q, id) .. rest)
end

-- {'die', … as in settle.lua, argument of the death, fingerprint, whether its attempts are exhausted}.
-- The entry of the feed and the death lack the fields that are known here.
local function die(call)
  local body, state = check_settle(call)
  if not body then
    return state
  end
  if state.h or (not state.m and may_ask_for_reply(body)) then
    has_left = true
    return {5}
  end
  local queue = state.q
  if state.m then
    remove_dead_letter(body, state)
  end
  wake_awaiting(ids_of(body, state, call[4]))
  end_delivery(call, body, state)
  write_death(body, state, call[4], ARGV[call[10]])
  if state.x then -- words of a former death
    deleted_keys[#deleted_keys + 1] = root .. 'w:' .. body
  end
  state.s, state.m, state.x, state.g, state.G = 'dead', nil, allocate_number(), call[11], now
  state.W = is_searched(queue) or nil
  if state.W then
    raise_format()
  end
  save_settled_state(body, state)
  add_dead_letter(body, state)
  add_count(queue, 'dead', 1)
  add_count(queue, 'dead_total', 1)
  add_count(queue, 'exhausted_total', call[12] and 1 or 0)
  add_packed_feed_entry('dead', queue, call[4], ARGV[call[9]])
  return settled_answer(state, 'dead')
end
