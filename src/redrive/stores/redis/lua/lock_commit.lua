-- Writes what a holder of the turn has worked out, and gives the turn back. Or writes nothing.
-- KEYS[1] meta: hash of numbers    KEYS[2] lock: "TOKEN CLIENT UNTIL"
-- ARGV[1] token    ARGV[2] the last number drawn
-- ARGV[3] 1: also in a full memory, because nothing new comes of it
-- ARGV[4…] commands: how many parts it has, then the parts
-- Answers 1, or 0 where the turn is no longer that of the token.
-- The client keeps commands short (no more parts than fit on the stack of Lua), and none of them can fail.

local turn = redis.call('GET', KEYS[2])
if not turn or string.sub(turn, 1, #ARGV[1]) ~= ARGV[1] then
  return 0
end
-- A full memory refuses nothing after a command that frees some. Else the first one is such that it refuses all.
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
