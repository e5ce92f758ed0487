-- Finds a namespace, or begins one.
-- KEYS[1] meta: hash of numbers; `format` is that of everything the namespace has
-- ARGV[1] the format to begin with    ARGV[2] 1: begin where there is nothing
-- Answers {instant, the format, or 0 where there is nothing}.

local time = redis.call('TIME')
local format = redis.call('HGET', KEYS[1], 'format')
-- Only where there is nothing: one that is there can be opened, and worked off, on a server whose memory is full.
if not format and ARGV[2] == '1' then
  redis.call('HSET', KEYS[1], 'format', ARGV[1])
  format = ARGV[1]
end
return {time[1] * 1000000 + time[2], tonumber(format or 0)}
