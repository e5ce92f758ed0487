-- Releases the lock of a namespace without writes: that of the caller, or that of a process that is gone.
-- KEYS[1] lock: "TOKEN CLIENT DIGITS"
-- ARGV[1] the lock, or a prefix of it
-- Returns 1, or 0 if there is another lock or none.

local lock = redis.call('GET', KEYS[1])
if lock and string.sub(lock, 1, #ARGV[1]) == ARGV[1] then
  redis.call('DEL', KEYS[1])
  return 1
end
return 0
