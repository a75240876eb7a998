#!lua flags=allow-oom
-- Send a command to a worker, which receives it with its next heartbeat.
--
-- KEYS    base worker
-- ARGV    options, the command (drain, work or stop)
-- REPLY   1, or 0 when no such worker lives
-- COST    4 commands
-- include numbers clock statistics
local known = redis.call('HMGET', K.worker, 'id', 'command', 'commanded')
if not known[1] then return 0 end
-- A worker obeys a command whose moment is later than that of the last command. So a new command gets a later moment
-- even if the clock was set back, and a repeated command keeps its moment.
local moment = math.max(clock.now, (tonumber(known[3]) or 0) + (known[2] == ARGV[FIRST_ARG] and 0 or 1))
redis.call('HSET', K.worker, 'command', ARGV[FIRST_ARG], 'commanded', numbers.exact(moment))
statistics.flush()
return 1
