-- The state of an item, the sorted sets that it is in, and entries of the feed.
-- Defines: tell; fetched, save, place.

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
