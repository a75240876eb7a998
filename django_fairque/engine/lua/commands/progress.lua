#!lua
-- Record the progress of a leased task, or the log lines of its attempt.
--
-- KEYS    base
-- ARGV    options, id, token, progress (opaque bytes); or options, id, token, '', log lines (opaque bytes)
-- REPLY   1 recorded, 0 stale lease
-- COST    4 commands; 6 with log lines
-- include calls keys clock
local id, token, lines = ARGV[FIRST_ARG], ARGV[FIRST_ARG + 1], ARGV[FIRST_ARG + 3]
local held = redis.call('HMGET', keys.task(id), 'state', 'token')
if held[1] ~= 'started' or held[2] ~= token then return 0 end
if not lines then
  redis.call('HSET', keys.task(id), 'progress', ARGV[FIRST_ARG + 2])
  return 1
end
-- The log lines replace earlier log lines of the same attempt. Only those of the last five attempts are kept.
local MOST_ATTEMPTS = 5
local key = P .. 'logs:' .. id
calls.attempt('HSET', key, token, lines)
local tokens = calls.attempt('HKEYS', key) or {}
table.sort(tokens, function(a, b) return (tonumber(a) or 0) > (tonumber(b) or 0) end)
for i = MOST_ATTEMPTS + 1, #tokens do calls.attempt('HDEL', key, tokens[i]) end
return 1
