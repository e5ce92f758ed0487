-- Puts, ends of deliveries, and leases: what is done often, in one script.
-- KEYS[1] meta: hash of numbers    KEYS[2] turn: "TOKEN CLIENT UNTIL"
-- ARGV[1] the beginning of every other key    ARGV[2] the calls    ARGV[3…] contents, results, rows of histories
--   info               queue → what is needed of its settings
--   counts:Q           items by status, and totals
--   c:B                content: 16 digits put_at, 16 digits tail of the first id, then what is not looked into
--   s:B                how the item stands (the names are in codec.py); none: pending since it was put, as it was put
--   h:B d:B w:B y:B    history, deaths, words, result
--   o:N                the body of the item that has or had the later id of this number
--   ready:Q:R          by ready_at; members are seq and body
--   leases:Q           by deadline; members are seq and body
--   waiting:Q expiring:Q completed:Q dead:Q    bodies by instant
--   all:Q letters:Q    bodies by number
--   groups:Q group:Q:F figures and members of the dead letters of one cause
--   held:NAME          bodies of held items
--   result:ID resultage    results that outlive their items: 16 digits until, then the result; and ids by until
--   keys:Q keyage:Q    idempotency keys: 32 digits id, 64 digits digest, 16 digits until; and by until
--   sources:Q          source ids: 32 digits id, 16 digits until
--   removed removed:N  lists of the items of deleted queues: their numbers, and bodies
--   feed               entries by number
-- Every call is checked before its first write. A full memory refuses puts, and completions with puts; what else ends
-- a delivery, and leases, begin with a command that it does not refuse, so that a full server can be worked off.
-- Answers {0, the turn} where somebody has it; else {1, instant, results of puts, of ends, of promotes, of leases,
-- arrivals}.

local root = ARGV[1]
local plan = cmsgpack.unpack(ARGV[2])
local time = redis.call('TIME')
local clock = time[1] * 1000000 + time[2]
local now = plan.t ~= 0 and plan.t or clock

local turn = redis.call('GET', KEYS[2])
if turn then
  local left = tonumber(string.sub(turn, -16)) - clock
  -- One that lasts longer than any does is by the clock of a server that this one has replaced.
  if left > 0 and left <= 60000000 then
    return {0, turn}
  end
end

-- Puts among other calls: whether the memory is full is asked by a command that changes nothing.
local full = false
if plan.w then
  local answer = redis.pcall('ZADD', root .. 'feed', 'XX', 0, '')
  full = type(answer) == 'table' and answer.err
  if full and not string.find(full, 'OOM ', 1, true) then
    return answer
  end
end
-- It refuses nothing after a command that frees some. This one also ends the turn of somebody who is late.
if turn or #plan.e + #plan.m + #plan.l > 0 then
  redis.call('DEL', KEYS[2])
end

local last = tonumber(redis.call('HGET', KEYS[1], 'next') or 0)
local drawn = false
local infos, counts, arrivals, retimed, leased_from, looked_at = {}, {}, {}, {}, {}, {}
-- What is added to sorted sets, taken from them, and removed, is gathered: `settle` comes before anything that reads it.
local contents, sets, taken, keys_gone, gone = {}, {}, {}, {}, {}

local function draw()
  last = math.max(last + 1, now)
  drawn = true
  return last
end

local function digits(number)
  return string.format('%016.0f', number)
end

local now_digits = digits(now)

-- The last 16 digits of the id that a number of ours stands in.
local function hexadecimal(number)
  return string.format('%08x%08x', math.floor(number / 2097152), (number % 2097152) * 2048)
end

local function number_of(id)
  return tonumber(string.sub(id, 17, 24), 16) * 2097152 + math.floor(tonumber(string.sub(id, 25, 32), 16) / 2048)
end

local function info_of(queue)
  local info = infos[queue]
  if info == nil then
    local raw = redis.call('HGET', root .. 'info', queue)
    info = raw and cmsgpack.unpack(raw) or false
    infos[queue] = info
  end
  return info
end

local function add(queue, what, difference)
  local of = counts[queue]
  if not of then
    of = {}
    counts[queue] = of
  end
  of[what] = (of[what] or 0) + difference
end

local function gathered(kinds, kind)
  local list = kinds[kind]
  if not list then
    list = {}
    kinds[kind] = list
  end
  return list
end

local function add_to(kind, score, member)
  local list = gathered(sets, kind)
  list[#list + 1] = score
  list[#list + 1] = member
end

local function take_from(kind, member)
  local list = gathered(taken, kind)
  list[#list + 1] = member
end

local function in_chunks(list, run)
  for at = 1, #list, 1000 do
    run(unpack(list, at, math.min(at + 999, #list)))
  end
end

-- What frees memory comes first: a full memory refuses nothing after it.
local function settle()
  for kind, list in pairs(taken) do
    in_chunks(list, function(...) redis.call('ZREM', root .. kind, ...) end)
  end
  in_chunks(keys_gone, function(...) redis.call('DEL', ...) end)
  in_chunks(contents, function(...) redis.call('MSET', ...) end)
  for kind, list in pairs(sets) do
    in_chunks(list, function(...) redis.call('ZADD', root .. kind, ...) end)
  end
  contents, sets, taken, keys_gone = {}, {}, {}, {}
end

local function tell(kind, queue, id, title)
  if info_of(queue).f[kind] then
    local number = draw()
    local entry = cmsgpack.pack({number = 0, at = 0, kind = kind, queue = queue, id = id, title = title})
    redis.call('ZADD', root .. 'feed', number, digits(number) .. now_digits .. entry)
  end
end

-- How items stand that ends name, read together. Each is used once, and read again for whoever names it after that.
local fetched = {}

local function save(body, stand)
  redis.call('SET', root .. 's:' .. body, cmsgpack.pack(stand))
end

-- The values of some keys that begin alike, one for each, or false.
local function get_all(kind, bodies)
  local keys, values = {}, {}
  for at, body in ipairs(bodies) do
    keys[at] = root .. kind .. body
  end
  in_chunks(keys, function(...)
    for _, value in ipairs(redis.call('MGET', ...)) do
      values[#values + 1] = value
    end
  end)
  return values
end

-- Where an item stands that is to be tried, and that nobody works on.
local function place(body, stand)
  local queue, due = stand.q, stand.r <= now
  if stand.h then
    add_to('held:' .. stand.h, stand.i and number_of(stand.i[#stand.i]) or body, body)
  elseif due and (stand.s or 'pending') == 'pending' then
    add_to('ready:' .. queue .. ':' .. stand.p, stand.r, digits(stand.n) .. body)
  else
    add_to('waiting:' .. queue, stand.r, body)
    retimed[queue] = true
  end
  if due and not stand.h then
    arrivals[queue] = (arrivals[queue] or 0) + 1
  end
  if stand.e then
    add_to('expiring:' .. queue, stand.e, body)
  end
  if stand.m then
    add_to('dead:' .. queue, stand.G, body)
  end
end

-- Puts. A put is {queue, items}, where an item is {argument, priority, bytes, options}; or, where nothing has options and
-- all have one priority, {queue, first argument, count, priority, bytes of the largest}.

local function size_of(queue)
  local of, size = counts[queue] or {}, 0
  for _, status in ipairs({'pending', 'failed', 'active'}) do
    size = size + (of[status] or 0)
  end
  for _, stored in ipairs(redis.call('HMGET', root .. 'counts:' .. queue, 'pending', 'failed', 'active')) do
    size = size + tonumber(stored or 0)
  end
  return size
end

-- Gives nil where it may be put, else what refuses it. `growth` and `keys` are those of puts checked before.
local function check_put(put, growth, keys)
  if full then
    return {'memory'}
  end
  local queue = put[1]
  local info = info_of(queue)
  if not info then
    return {'queue', queue}
  end
  local adding = 0
  if put[3] then
    if put[5] > info.b then
      return {'large', info.b}
    end
    adding = put[3]
  end
  for _, item in ipairs(put[3] and {} or put[2]) do
    if item[3] > info.b then
      return {'bytes', item[3], info.b}
    end
    local options, known = item[4], nil
    if options and options.k then
      local field = queue .. '\0' .. options.k
      local raw = redis.call('HGET', root .. 'keys:' .. queue, options.k)
      if raw and tonumber(string.sub(raw, 97)) > now then
        if string.sub(raw, 33, 96) ~= options.g then
          return {'key', queue, options.k, string.sub(raw, 1, 32)}
        end
        known = string.sub(raw, 1, 32)
      elseif keys[field] then
        if keys[field][1] ~= options.g then
          return {'key', queue, options.k, ''}
        end
        known = keys[field]
      else
        keys[field] = {options.g, item}
      end
      options.known = known
    end
    if not known then
      adding = adding + 1
    end
  end
  if info.m and adding > 0 then
    local size = size_of(queue) + (growth[queue] or 0)
    if size + adding > info.m then
      return {'full', queue, size, info.m, adding}
    end
  end
  growth[queue] = (growth[queue] or 0) + adding
end

local function write_item(queue, info, item)
  local number = draw()
  local body = digits(number)
  local content, options = ARGV[item[1]], item[4]
  local ready_at, expire, deadline = now, info.e, nil
  contents[#contents + 1] = root .. 'c:' .. body
  contents[#contents + 1] = now_digits .. content
  if options then
    if options.a then
      ready_at = math.max(now, options.a)
    elseif options.d then
      ready_at = now + options.d
    end
    expire = options.x or expire
  end
  if expire then
    deadline = now + expire
  end
  if options or deadline then
    local stand = {q = queue, n = number, r = ready_at, p = item[2], e = deadline, h = options and options.h}
    save(body, stand)
    place(body, stand)
  else
    add_to('ready:' .. queue .. ':' .. item[2], ready_at, body .. body)
    arrivals[queue] = (arrivals[queue] or 0) + 1
  end
  add_to('all:' .. queue, number, body)
  add(queue, 'pending', 1)
  add(queue, 'put_total', 1)
  if options and options.k then
    local id, until_ = string.sub(content, 1, 16) .. hexadecimal(number), now + info.i
    redis.call('HSET', root .. 'keys:' .. queue, options.k, id .. options.g .. digits(until_))
    add_to('keyage:' .. queue, until_, options.k)
    item.id = id
  end
  if info.f.put then
    tell('put', queue, string.sub(content, 1, 16) .. hexadecimal(number))
  end
  return body
end

-- Items of which nothing is said but their priority. Gives the number of the first; the others follow it.
local function write_plain(queue, argument, count, priority)
  local ready, all = gathered(sets, 'ready:' .. queue .. ':' .. priority), gathered(sets, 'all:' .. queue)
  local first = math.max(last + 1, now)
  for place_ = 0, count - 1 do
    local body = digits(first + place_)
    contents[#contents + 1] = root .. 'c:' .. body
    contents[#contents + 1] = now_digits .. ARGV[argument + place_]
    ready[#ready + 1] = now
    ready[#ready + 1] = body .. body
    all[#all + 1] = first + place_
    all[#all + 1] = body
  end
  last, drawn = first + count - 1, true
  add(queue, 'pending', count)
  add(queue, 'put_total', count)
  arrivals[queue] = (arrivals[queue] or 0) + count
  return first
end

-- Gives for each item its body, or the id of the one that is there; or the number of the first, where others follow it.
local function write_put(put)
  local queue, written, items = put[1], {}, put[2]
  local info = info_of(queue)
  if put[3] then
    if not info.e and not info.f.put then
      return write_plain(queue, put[2], put[3], put[4])
    end
    items = {}
    for place_ = 1, put[3] do
      items[place_] = {put[2] + place_ - 1, put[4], 0}
    end
  end
  for place_, item in ipairs(items) do
    local known = item[4] and item[4].known
    if not known then
      written[place_] = write_item(queue, info, item)
    elseif type(known) == 'table' then
      written[place_] = known[2].id
    else
      written[place_] = known
    end
  end
  return written
end

-- Ends of deliveries. A call is {kind, number, key of the token, id, …}.

-- Whether an item is of a deleted queue, and has yet to be swept.
local function is_removed(body)
  for _, number in ipairs(redis.call('LRANGE', root .. 'removed', 0, -1)) do
    if redis.call('ZSCORE', root .. 'removed:' .. number, body) then
      return true
    end
  end
  return false
end

-- The body and the stand of the item that is active under a token, in that queue unless it is false; or nil, and the
-- answer that says why not.
local function leased(number, key, queue)
  local body = number
  if gone[body] then
    return nil, {0, ''}
  end
  local raw = fetched[body]
  if raw == nil then
    raw = redis.call('GET', root .. 's:' .. body)
  end
  fetched[body] = nil
  if not raw then
    if redis.call('EXISTS', root .. 'c:' .. body) == 1 then
      return nil, {0, is_removed(body) and '' or 'pending'}
    end
    body = redis.call('GET', root .. 'o:' .. number)
    raw = body and not gone[body] and redis.call('GET', root .. 's:' .. body)
    if not raw then
      return nil, {0, ''}
    end
  end
  local stand = cmsgpack.unpack(raw)
  if stand.t ~= key then
    return nil, {0, is_removed(body) and '' or stand.s or 'pending'}
  end
  if queue and queue ~= stand.q then
    return nil, {4, stand.q}
  end
  return body, stand
end

local function settled(stand, status, ready_at)
  return {
    1, stand.q, status, stand.d or 0, stand.a or 0, stand.f or 0, stand.l or 0, stand.v or 0, ready_at or -1,
  }
end

-- A dead letter that is one no longer.
local function leave_group(body, stand)
  local key, hour = root .. 'groups:' .. stand.q, stand.G - stand.G % 3600000000
  local figures = cmsgpack.unpack(redis.call('HGET', key, stand.g))
  redis.call('ZREM', root .. 'letters:' .. stand.q, body)
  redis.call('ZREM', root .. 'group:' .. stand.q .. ':' .. stand.g, body)
  add(stand.q, 'dead_letters', -1)
  figures[1] = figures[1] - 1
  if figures[1] == 0 then
    redis.call('HDEL', key, stand.g)
    return
  end
  local left = figures[4][hour] - 1
  figures[4][hour] = left > 0 and left or nil
  redis.call('HSET', key, stand.g, cmsgpack.pack(figures))
end

local function remove(body, stand, id)
  gone[body] = true
  take_from('all:' .. stand.q, body)
  for _, later in ipairs(stand.i or {}) do
    redis.call('DEL', root .. 'o:' .. digits(number_of(later)))
  end
  if stand.S then
    local key = root .. 'sources:' .. stand.q
    local source = redis.call('HGET', key, stand.S)
    if source and string.sub(source, 1, 32) == id and tonumber(string.sub(source, 33)) <= now then
      redis.call('HDEL', key, stand.S)
    end
  end
  for _, kind in ipairs(stand.k and {'c:', 's:', 'h:', 'd:', 'w:', 'y:'} or {'c:', 's:'}) do
    keys_gone[#keys_gone + 1] = root .. kind .. body
  end
end

local function end_lease(body, stand)
  add(stand.q, 'active', -1)
  stand.t, stand.w, stand.L, stand.D = nil, nil, nil, nil
end

-- A result that is kept for a time of its own, under every id that the item had.
local function keep_result(body, stand, id, result, until_)
  local ids = {id}
  if stand.i and #stand.i > 0 then
    ids = {string.sub(redis.call('GET', root .. 'c:' .. body), 17, 32) .. hexadecimal(body), unpack(stand.i)}
  end
  for _, each in ipairs(ids) do
    redis.call('SET', root .. 'result:' .. each, digits(until_) .. result)
    add_to('resultage', until_, each)
  end
end

-- {'complete', number, key, id, queue or false, argument of the result or 0, bytes of it, for how long it is kept or 0,
-- puts}
local function complete(call)
  local body, stand = leased(call[2], call[3], call[5])
  if not body then
    return stand
  end
  local queue, growth, keys = stand.q, {}, {}
  local info = info_of(queue)
  if call[7] > info.b then
    return {3, 'result', call[7], info.b}
  end
  growth[queue] = -1
  for _, put in ipairs(call[9]) do
    local refused = check_put(put, growth, keys)
    if refused then
      return {3, unpack(refused)}
    end
  end
  take_from('leases:' .. queue, digits(stand.n) .. body)
  end_lease(body, stand)
  if call[8] > 0 then
    keep_result(body, stand, call[4], ARGV[call[6]], now + call[8])
  end
  if stand.m then
    leave_group(body, stand)
  end
  local status = ''
  if info.k == 0 then
    remove(body, stand, call[4])
  else
    status, stand.s, stand.C = 'completed', 'completed', now
    if call[6] ~= 0 then
      redis.call('SET', root .. 'y:' .. body, ARGV[call[6]])
      stand.k = true
    end
    save(body, stand)
    add_to('completed:' .. queue, now, body)
    add(queue, 'completed', 1)
  end
  add(queue, 'completed_total', 1)
  for _, put in ipairs(call[9]) do
    write_put(put)
  end
  if info.f.completed then
    tell('completed', queue, call[4])
  end
  return settled(stand, status)
end

-- A completion with nothing to it is the digits of the number, the key and the id as one text, and behind them the queue
-- where one is named. Gives the queue, where the item is gone now and this was its first delivery.
local function complete_plainly(call)
  local number, key, named = string.sub(call, 1, 16), string.sub(call, 17, 32), #call > 64 and string.sub(call, 65)
  local raw = fetched[number]
  if not raw or gone[number] then
    return complete({'complete', number, key, string.sub(call, 33, 64), named, 0, 0, 0, {}})
  end
  local stand = cmsgpack.unpack(raw)
  local queue = stand.q
  local info = info_of(queue)
  local is_plain = stand.t == key and stand.d == 1 and stand.a == 1 and info.k == 0 and not info.f.completed
  if not is_plain or stand.k or stand.m or stand.i or stand.S or (named and named ~= queue) then
    return complete({'complete', number, key, string.sub(call, 33, 64), named, 0, 0, 0, {}})
  end
  fetched[number] = nil
  gone[number] = true
  take_from('leases:' .. queue, digits(stand.n) .. number)
  take_from('all:' .. queue, number)
  keys_gone[#keys_gone + 1] = root .. 'c:' .. number
  keys_gone[#keys_gone + 1] = root .. 's:' .. number
  add(queue, 'active', -1)
  add(queue, 'completed_total', 1)
  return queue
end

-- The first 5 rows and the last 45; those between are only counted.
local function write_history(body, stand, worker, told)
  local key = root .. 'h:' .. body
  local head = now_digits .. string.format('%010.0f%04d%04d', stand.d or 0, #worker, #stand.q)
  local row = head .. worker .. stand.q .. told
  stand.k = true
  if redis.call('RPUSH', key, row) > 50 then
    redis.call('LSET', key, 5, '')
    redis.call('LREM', key, 1, '')
    stand.o = (stand.o or 0) + 1
  end
end

-- {'again', number, key, id, ending, version, status, delay, argument of the row of the history, title or false, at once}
local function again(call)
  local body, stand = leased(call[2], call[3], false)
  if not body then
    return stand
  end
  local queue, ending, status = stand.q, call[5], call[7]
  if ending == 'lost' and not call[11] and stand.D > now then
    return {0, 'active'}
  end
  if info_of(queue).v ~= call[6] then
    return {2, redis.call('HGET', root .. 'queues', queue)}
  end
  local worker = stand.w or ''
  redis.call('ZREM', root .. 'leases:' .. stand.q, digits(stand.n) .. body)
  end_lease(body, stand)
  if ending == 'failed' then
    stand.f = (stand.f or 0) + 1
    add(queue, 'failed_total', 1)
  elseif ending == 'lost' then
    stand.l = (stand.l or 0) + 1
  end
  write_history(body, stand, worker, ARGV[call[9]])
  stand.s, stand.r, stand.n = status, now + call[8], draw()
  save(body, stand)
  place(body, stand)
  add(queue, status, 1)
  tell(ending, queue, call[4], call[10] or nil)
  return settled(stand, status, stand.r)
end

-- {'return', number, key, id, queue or false, argument of the row of the history or 0, note or false}
local function give_back(call)
  local body, stand = leased(call[2], call[3], call[5])
  if not body then
    return stand
  end
  local worker = stand.w or ''
  redis.call('ZREM', root .. 'leases:' .. stand.q, digits(stand.n) .. body)
  end_lease(body, stand)
  stand.s, stand.a = 'pending', math.max(0, (stand.a or 0) - 1)
  if call[6] ~= 0 then
    write_history(body, stand, worker, ARGV[call[6]])
  end
  save(body, stand)
  place(body, stand)
  add(stand.q, 'pending', 1)
  if call[7] then
    tell('returned', stand.q, call[4], call[7])
  end
  return settled(stand, 'pending', stand.r)
end

-- {'extend', number, key, id, queue or false, timeout or -1}
local function extend(call)
  local body, stand = leased(call[2], call[3], call[5])
  if not body then
    return stand
  end
  stand.D = now + (call[6] >= 0 and call[6] or info_of(stand.q).t)
  save(body, stand)
  redis.call('ZADD', root .. 'leases:' .. stand.q, stand.D, digits(stand.n) .. body)
  return {1, stand.D}
end

local ends = {complete = complete, again = again, ['return'] = give_back, extend = extend}

-- Leases.

-- Makes items ready that have fallen due. Gives how many.
local function bring_in(queue, limit)
  local due = redis.call('ZRANGEBYSCORE', root .. 'waiting:' .. queue, '-inf', now, 'LIMIT', 0, limit)
  for _, body in ipairs(due) do
    local stand = cmsgpack.unpack(redis.call('GET', root .. 's:' .. body))
    redis.call('ZREM', root .. 'waiting:' .. queue, body)
    redis.call('ZADD', root .. 'ready:' .. queue .. ':' .. stand.p, stand.r, digits(stand.n) .. body)
    if stand.s == 'failed' then
      stand.s = 'pending'
      save(body, stand)
      add(queue, 'failed', -1)
      add(queue, 'pending', 1)
    end
    arrivals[queue] = (arrivals[queue] or 0) + 1
  end
  return #due
end

local function promote(limit)
  local count = 0
  for _, queue in ipairs(redis.call('HKEYS', root .. 'info')) do
    if count < limit then
      count = count + bring_in(queue, limit - count)
    end
  end
  return count
end

local function first_at(kind)
  local head = redis.call('ZRANGE', root .. kind, 0, 0, 'WITHSCORES')
  return head[2] and tonumber(head[2])
end

local function is_over(instant)
  return instant and instant <= now
end

local function key_of(call, body)
  return string.sub(redis.sha1hex(call[6] .. body), 1, 16)
end

local function lease(queue, info, body, stand, content, call, deadline)
  if stand.e then
    redis.call('ZREM', root .. 'expiring:' .. queue, body)
  end
  if stand.m then
    redis.call('ZREM', root .. 'dead:' .. queue, body)
  end
  stand.s, stand.d, stand.a = 'active', (stand.d or 0) + 1, (stand.a or 0) + 1
  stand.t, stand.w = key_of(call, body), call[3] or nil
  stand.L, stand.D, stand.F = now, deadline, stand.F or now
  local packed = cmsgpack.pack(stand)
  contents[#contents + 1] = root .. 's:' .. body
  contents[#contents + 1] = packed
  add_to('leases:' .. queue, deadline, digits(stand.n) .. body)
  if info.f.leased then
    tell('leased', queue, stand.i and stand.i[#stand.i] or string.sub(content, 17, 32) .. hexadecimal(body))
  end
  return {body, content, packed}
end

-- Leases items that nobody has leased before, and of which nothing is said: they differ in three fields only, which are
-- written behind the others. A map of up to 15 fields begins with 128 and their number; a text of one letter with 161,
-- one of 16 letters with 176.
local function plain_leases(queue, info, rank, call, deadline)
  local same = {q = queue, p = rank, s = 'active', d = 1, a = 1, w = call[3] or nil, L = now, D = deadline, F = now}
  local packed = cmsgpack.pack(same)
  local head = string.char(string.byte(packed) + 3) .. string.sub(packed, 2) .. '\161n'
  local leased = gathered(sets, 'leases:' .. queue)
  return function(member, ready_at, content)
    local seq, body = string.sub(member, 1, 16), string.sub(member, 17)
    local numbers = cmsgpack.pack(tonumber(seq)) .. '\161r' .. cmsgpack.pack(tonumber(ready_at))
    local stand = head .. numbers .. '\161t\176' .. key_of(call, body)
    contents[#contents + 1] = root .. 's:' .. body
    contents[#contents + 1] = stand
    leased[#leased + 1] = deadline
    leased[#leased + 1] = member
    if info.f.leased then
      tell('leased', queue, string.sub(content, 17, 32) .. hexadecimal(body))
    end
    return {body, content, stand}
  end
end

-- {queue, limit, worker or false, timeout or -1, swept, seed of the keys}; gives {overdue, next_at or -1, leases}, with
-- next_at only where there are fewer than were asked for
local function lease_items(call)
  local queue, limit = call[1], call[2]
  local info = info_of(queue)
  if not info then
    return false
  end
  if info.p then
    return {0, -1, {}}
  end
  if not looked_at[queue] then
    bring_in(queue, 1000)
    looked_at[queue] = {is_over(first_at('leases:' .. queue)) or is_over(first_at('expiring:' .. queue))}
  end
  if not call[5] and looked_at[queue][1] then
    return {1, -1, {}}
  end
  local deadline = now + (call[4] >= 0 and call[4] or info.t)
  local leases, rank = {}, 9
  while rank >= 0 and #leases < limit do
    local key, wanted = root .. 'ready:' .. queue .. ':' .. rank, math.min(limit - #leases, 500)
    local heads = redis.call('ZRANGE', key, 0, wanted - 1, 'WITHSCORES')
    if #heads > 0 then
      redis.call('ZREMRANGEBYRANK', key, 0, #heads / 2 - 1)
    end
    local bodies = {}
    for at = 1, #heads, 2 do
      bodies[#bodies + 1] = string.sub(heads[at], 17)
    end
    local stands, contents_ = get_all('s:', bodies), get_all('c:', bodies)
    local lease_plain = #bodies > 0 and plain_leases(queue, info, rank, call, deadline)
    for place_, body in ipairs(bodies) do
      local raw, content = stands[place_], contents_[place_]
      if not raw then
        leases[#leases + 1] = lease_plain(heads[2 * place_ - 1], heads[2 * place_], content)
      else
        local stand = cmsgpack.unpack(raw)
        -- An expired one is given to nobody any more: it only waits for its end.
        if not is_over(stand.e) then
          leases[#leases + 1] = lease(queue, info, body, stand, content, call, deadline)
        end
      end
    end
    if #heads / 2 < wanted then
      rank = rank - 1
    end
  end
  if #leases > 0 then
    add(queue, 'pending', -#leases)
    add(queue, 'active', #leases)
    leased_from[queue] = true
    settle()
  end
  if #leases == limit then
    return {0, -1, leases}
  end
  local waiting, active = first_at('waiting:' .. queue), first_at('leases:' .. queue)
  return {0, math.min(waiting or active or -1, active or waiting or -1), leases}
end

-- The calls, by kind.

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
