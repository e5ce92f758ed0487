-- Opens a namespace, or creates it.
-- KEYS[1] meta, whose `format` is the version of all keys and values of the namespace
-- ARGV[1] the format of a new namespace    ARGV[2] 1: create it if it does not exist
-- Returns {instant, format, or 0 if the namespace does not exist}.

local time = redis.call('TIME')
local format = redis.call('HGET', KEYS[1], 'format')
-- An existing namespace is not written to, so that it can be opened and drained on a server whose memory is full.
if not format and ARGV[2] == '1' then
  redis.call('HSET', KEYS[1], 'format', ARGV[1])
  format = ARGV[1]
end
return {time[1] * 1000000 + time[2], tonumber(format or 0)}
