-- Reads several things at one instant.
-- KEYS[1] meta, which says on which server the namespace is
-- ARGV[1…] commands that only read: how many parts it has, then the parts
-- Answers {instant, the answer of each}.

local time = redis.call('TIME')
local answers = {time[1] * 1000000 + time[2]}
local at = 1
while at <= #ARGV do
  local count = tonumber(ARGV[at])
  answers[#answers + 1] = redis.call(unpack(ARGV, at + 1, at + count))
  at = at + count + 1
end
return answers
