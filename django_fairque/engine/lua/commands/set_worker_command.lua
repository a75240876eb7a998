#!lua flags=allow-oom
-- Tell a worker what is wished of it: it hears that with its next heartbeat.
--
-- KEYS    base worker
-- ARGV    options, the wish (quiet, work or stop)
-- REPLY   1, or 0 when no such worker lives
-- COST    4 commands
-- include base
local known = redis.call('HMGET', K.worker, 'id', 'wish', 'wished')
if not known[1] then return 0 end
-- A wish is heard if it is later than the last one, also when the clock was set back between them. Repeated, this is no other wish.
local moment = math.max(now, (tonumber(known[3]) or 0) + (known[2] == ARGV[A] and 0 or 1))
redis.call('HSET', K.worker, 'wish', ARGV[A], 'wished', exact(moment))
flush_stats()
return 1
