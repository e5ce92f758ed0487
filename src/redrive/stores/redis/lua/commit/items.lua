-- The state of an item, the sorted sets that it is in, and entries of the feed.
-- Defines: queue_and_id, add_packed_feed_entry, add_feed_entry; fetched_states, save_state, save_settled_state,
-- index_item; is_removed.

-- Fields in MessagePack, which are appended to a map whose head counts them already.
local function queue_and_id(queue, id)
  return '\165queue' .. cmsgpack.pack(queue) .. '\162id' .. cmsgpack.pack(id)
end

-- `packed` is the entry without its queue and id.
local function add_packed_feed_entry(kind, queue, id, packed)
  if info_of(queue).f[kind] then
    local number = allocate_number()
    add_to_set('feed', number, digits(number) .. now_digits .. packed .. queue_and_id(queue, id))
  end
end

-- `title` is that of the entry, or nil.
local function add_feed_entry(kind, queue, id, title)
  if info_of(queue).f[kind] then
    local number = allocate_number()
    local entry = {number = 0, at = 0, kind = kind, queue = queue, id = id, title = title}
    add_to_set('feed', number, digits(number) .. now_digits .. cmsgpack.pack(entry))
  end
end

-- Current states of the items that calls settle, by body.
local fetched_states = {}

local function save_state(body, state)
  fetched_states[body] = cmsgpack.pack(state)
  redis.call('SET', root .. 's:' .. body, fetched_states[body])
end

-- Like save_state, buffered: for an item that no call can remove before the next flush, because its token has ended.
local function save_settled_state(body, state)
  fetched_states[body] = cmsgpack.pack(state)
  string_writes[#string_writes + 1] = root .. 's:' .. body
  string_writes[#string_writes + 1] = fetched_states[body]
end

-- Adds an unleased pending or failed item to its sorted sets.
local function index_item(body, state)
  local queue, due = state.q, state.r <= now
  if state.h then
    if type(state.h) == 'table' then
      raise_format()
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
