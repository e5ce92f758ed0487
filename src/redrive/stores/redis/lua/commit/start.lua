-- Puts, ends of deliveries, and leases: what is done often, in one script.
-- KEYS[1] meta: hash of numbers    KEYS[2] lock: "TOKEN CLIENT UNTIL"
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
--   all:Q dead_letters:Q    bodies by number
--   groups:Q group:Q:F figures and members of the dead letters of one cause
--   held:NAME          bodies of held items
--   result:ID result_expiry    results that outlive their items: 16 digits until, then the result; and ids by until
--   keys:Q key_expiry:Q    idempotency keys: 32 digits id, 64 digits digest, 16 digits until; and by until
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
