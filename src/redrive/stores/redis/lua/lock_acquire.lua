-- Takes the turn: until it is given back, nobody else changes the namespace.
-- KEYS[1] meta: hash of numbers    KEYS[2] lock: "TOKEN CLIENT UNTIL"
-- ARGV[1] token    ARGV[2] client id    ARGV[3] for how long, in microseconds
-- Answers {1, instant, next, epoch, version}, or {0, the turn of the one who has it}.

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local turn = redis.call('GET', KEYS[2])
local left = turn and tonumber(string.sub(turn, -16)) - now
-- One that lasts longer than any does is by the clock of a server that this one has replaced.
if turn and left > 0 and left <= 60000000 then
  return {0, turn}
end
-- A full memory refuses nothing after a command that frees some: what is there can be removed.
redis.call('DEL', KEYS[2])
redis.call('SET', KEYS[2], ARGV[1] .. ' ' .. ARGV[2] .. ' ' .. string.format('%016.0f', now + ARGV[3]))
local meta = redis.call('HMGET', KEYS[1], 'next', 'epoch', 'version')
return {1, now, tonumber(meta[1] or 0), tonumber(meta[2] or 0), tonumber(meta[3] or 0)}
