#!lua flags=allow-oom
-- Tell a worker what is wished of it: it hears that with its next heartbeat.
--
-- KEYS    base worker
-- ARGV    options, the wish (quiet, work or stop)
-- REPLY   1, or 0 when no such worker lives
-- COST    4 commands
-- include base
if redis.call('EXISTS', K.worker) == 0 then return 0 end
redis.call('HSET', K.worker, 'wish', ARGV[A], 'wished', now_text)
flush_stats()
return 1
