-- Takes the lock of a namespace: until it is released or expires, no other process changes the namespace.
-- KEYS[1] meta    KEYS[2] lock: "TOKEN CLIENT DIGITS", with the digits of the instant at which it expires
-- ARGV[1] token    ARGV[2] client id    ARGV[3] duration in microseconds
-- Returns {1, instant, next, epoch, version}, or {0, lock} if another process has it.

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local lock = redis.call('GET', KEYS[2])
local left = lock and tonumber(string.sub(lock, -16)) - now
-- A lock that expires later than any valid one was taken by the clock of a server that this one has replaced.
if lock and left > 0 and left <= 60000000 then
  return {0, lock}
end
-- A full server refuses nothing after a command that frees memory: so items can be removed from it.
redis.call('DEL', KEYS[2])
redis.call('SET', KEYS[2], ARGV[1] .. ' ' .. ARGV[2] .. ' ' .. string.format('%016.0f', now + ARGV[3]))
local meta = redis.call('HMGET', KEYS[1], 'next', 'epoch', 'version')
return {1, now, tonumber(meta[1] or 0), tonumber(meta[2] or 0), tonumber(meta[3] or 0)}
