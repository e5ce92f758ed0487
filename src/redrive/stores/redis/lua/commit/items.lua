-- The state of an item, the sorted sets that it is in, and entries of the feed.
-- Defines: add_feed_entry; fetched_states, save_state, index_item; is_removed.

-- `details` are the other fields of the entry, if it has any.
local function add_feed_entry(kind, queue, id, details)
  if info_of(queue).f[kind] then
    local number, entry = allocate_number(), details or {}
    entry.number, entry.at, entry.kind, entry.queue, entry.id = 0, 0, kind, queue, id
    redis.call('ZADD', root .. 'feed', number, digits(number) .. now_digits .. cmsgpack.pack(entry))
  end
end

-- States of the items that calls settle, read together, by body. Each is used once: a later call for the same item
-- reads it again.
local fetched_states = {}

local function save_state(body, state)
  redis.call('SET', root .. 's:' .. body, cmsgpack.pack(state))
end

-- Adds an unleased pending or failed item to its sorted sets.
local function index_item(body, state)
  local queue, due = state.q, state.r <= now
  if state.h then
    if type(state.h) == 'table' then
      redis.call('HSET', KEYS[1], 'format', calls.v)
    end
    for _, holder in ipairs(type(state.h) == 'table' and state.h or {{state.h}}) do
      add_to_set('held:' .. holder[1], state.i and number_of(state.i[#state.i]) or body, body)
    end
  elseif due and (state.s or 'pending') == 'pending' then
    add_to_set('ready:' .. queue .. ':' .. state.p, state.r, digits(state.n) .. body)
  else
    add_to_set('waiting:' .. queue, state.r, body)
    retimed[queue] = true
  end
  if due and not state.h then
    arrivals[queue] = (arrivals[queue] or 0) + 1
  end
  if state.e then
    add_to_set('expiring:' .. queue, state.e, body)
  end
  if state.m then
    add_to_set('dead:' .. queue, state.G, body)
  end
end

-- Returns whether the queue of an item was deleted, and the item is not yet swept.
local function is_removed(body)
  for _, number in ipairs(redis.call('LRANGE', root .. 'removed', 0, -1)) do
    if redis.call('ZSCORE', root .. 'removed:' .. number, body) then
      return true
    end
  end
  return false
end
