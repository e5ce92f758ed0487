-- Runs the writes that the holder of the lock has prepared, and releases the lock; or does nothing if it was lost.
-- KEYS[1] meta    KEYS[2] lock: "TOKEN CLIENT DIGITS"
-- ARGV[1] token    ARGV[2] the last number allocated
-- ARGV[3] 1: also if the memory is full, because the commands add no items
-- ARGV[4…] commands, each as the number of its parts and the parts
-- Returns 1, or 0 if the lock is no longer that of the token.
-- The client keeps commands short (no more parts than fit on the stack of Lua), and none of them can fail.

local lock = redis.call('GET', KEYS[2])
if not lock or string.sub(lock, 1, #ARGV[1]) ~= ARGV[1] then
  return 0
end
-- A full server refuses nothing after a command that frees memory. Without one, it refuses the first write, and so all.
if ARGV[3] == '1' then
  redis.call('DEL', KEYS[2])
end
redis.call('HSET', KEYS[1], 'next', ARGV[2])
local at = 4
while at <= #ARGV do
  local count = tonumber(ARGV[at])
  redis.call(unpack(ARGV, at + 1, at + count))
  at = at + count + 1
end
redis.call('DEL', KEYS[2])
return 1
