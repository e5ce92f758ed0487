-- The fast path: puts, settled deliveries, promotions and leases of one commit. scripts.py lists the parts.
-- KEYS[1] meta    KEYS[2] lock: "TOKEN CLIENT DIGITS"
-- ARGV[1] root: the start of every other key    ARGV[2] calls, as MessagePack    ARGV[3…] contents, results,
-- entries of histories and of the feed, and deaths, which calls name by their number in ARGV
--   info                       queue → the settings that scripts need; the names are in queue_state.py
--   counts:Q                   items by status, and totals
--   c:B                        16 digits put_at, 16 digits suffix of the first id, then what scripts do not read
--   s:B                        state of the item; the names are in codec.py. Missing while a plain item is pending
--                              since its put
--   h:B d:B w:B y:B            history, deaths, search words, result
--   o:N                        body of the item that has or had the later id with this number
--   ready:Q:R                  by ready_at; members are seq and body
--   leases:Q                   by deadline; members are seq and body
--   waiting:Q expiring:Q completed:Q dead:Q    bodies by instant
--   all:Q dead_letters:Q       bodies by number
--   groups:Q group:Q:F         counts, and bodies of the dead letters, of one fingerprint
--   held:NAME                  bodies of held items
--   result:ID result_expiry    results kept longer than their items: 16 digits expiry, queue, NUL, queue of the put or
--                              nothing, NUL, then the result; ids by expiry
--   keys:Q key_expiry:Q        idempotency keys: 32 digits id, 64 digits digest, 16 digits expiry, 0 if it ends with
--                              its item; keys by expiry, or by the instant of the next check whether the item exists
--   sources:Q                  source ids: 32 digits id, 16 digits expiry
--   removed removed:N          numbers of deletions of queues; bodies of the items of one
--   feed                       entries by number
-- Every call is checked before its first write. If the memory of the server is full, puts and completions with puts are
-- refused. All other calls start with a command that is not refused, so that the queues of a full server can be
-- drained.
-- Returns {0, lock} if a process has the lock; else {1, instant, results of puts, of settled deliveries, of promotions,
-- of leases, arrivals}, where arrivals are queues and counts in turn.
--
-- A call is left, with the answer {5}, if it needs the rules, or is a run of puts that is refused. So are the calls that
-- come after it: they take effect after it.
--
-- Defines: root, now; calls: `t` instant or 0, `w` whether puts are among other calls, `v` the format, `r` the header
-- that asks for a reply, and by kind `p` puts, `e` ends of deliveries, `m` promotions, `l` leases; memory_full; has_left;
-- and the shared variables of the calls of this script.

local root = ARGV[1]
local calls = cmsgpack.unpack(ARGV[2])
local time = redis.call('TIME')
local clock = time[1] * 1000000 + time[2]
local now = calls.t ~= 0 and calls.t or clock

local lock = redis.call('GET', KEYS[2])
if lock then
  local left = tonumber(string.sub(lock, -16)) - clock
  -- A lock that expires later than any valid one was taken by the clock of a server that this one has replaced.
  if left > 0 and left <= 60000000 then
    return {0, lock}
  end
end

-- With puts among other calls, a command that changes nothing checks whether the memory is full.
local memory_full = false
if calls.w then
  local answer = redis.pcall('ZADD', root .. 'feed', 'XX', 0, '')
  memory_full = type(answer) == 'table' and answer.err
  if memory_full and not string.find(memory_full, 'OOM ', 1, true) then
    return answer
  end
end
-- A full server refuses nothing after a command that frees memory. This one also ends a lock that has expired.
if lock or #calls.e + #calls.m + #calls.l > 0 then
  redis.call('DEL', KEYS[2])
end

-- True if a call was left.
local has_left = false
local last_number = tonumber(redis.call('HGET', KEYS[1], 'next') or 0)
local is_number_allocated = false
-- By queue: settings, changes of counts, number of items that became leasable, whether its next due time changed,
-- whether something was leased, and whether it has overdue items.
local infos, counts, arrivals, retimed, leased_from, overdue = {}, {}, {}, {}, {}, {}
-- Result topics of items whose result is kept.
local ended = {}
-- Writes are buffered until `flush`, which must run before they are read.
local string_writes, set_additions, set_removals, deleted_keys, removed_bodies = {}, {}, {}, {}, {}
-- Figures of groups of dead letters, by queue and fingerprint.
local changed_groups = {}
