-- Runs commands that only read, all at one instant.
-- KEYS[1] meta, by which a cluster finds the server of the namespace
-- ARGV[1…] commands, each as the number of its parts and the parts
-- Returns {instant, the answer of each}.

local time = redis.call('TIME')
local answers = {time[1] * 1000000 + time[2]}
local at = 1
while at <= #ARGV do
  local count = tonumber(ARGV[at])
  answers[#answers + 1] = redis.call(unpack(ARGV, at + 1, at + count))
  at = at + count + 1
end
return answers
