#!lua flags=allow-oom
-- Send a worker a command, which it gets with its next heartbeat.
--
-- KEYS    base worker
-- ARGV    options, the command (drain, work or stop)
-- REPLY   1, or 0 when no such worker lives
-- COST    4 commands
-- include numbers clock statistics
local known = redis.call('HMGET', K.worker, 'id', 'command', 'commanded')
if not known[1] then return 0 end
-- A command counts if it is later than the last one, also when the clock was set back between them. Repeated, it is the same command.
local moment = math.max(clock.now, (tonumber(known[3]) or 0) + (known[2] == ARGV[FIRST_ARG] and 0 or 1))
redis.call('HSET', K.worker, 'command', ARGV[FIRST_ARG], 'commanded', numbers.exact(moment))
statistics.flush()
return 1
