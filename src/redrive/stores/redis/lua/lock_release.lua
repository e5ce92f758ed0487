-- Gives a turn back, or takes it from one who is gone. Nothing was written in it.
-- KEYS[1] lock: "TOKEN CLIENT UNTIL"
-- ARGV[1] the turn, or how it begins
-- Answers 1, or 0 where it has another one.

local turn = redis.call('GET', KEYS[1])
if turn and string.sub(turn, 1, #ARGV[1]) == ARGV[1] then
  redis.call('DEL', KEYS[1])
  return 1
end
return 0
