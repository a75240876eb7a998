#!lua flags=allow-oom
-- Stop or resume the start of this shard's tasks. Pushes are accepted in any case.
--
-- KEYS    base
-- ARGV    options, paused (0; 1; the moment (us) at which the pause ends; or its length (us) as a negative number), its note ('' for none)
-- REPLY   1
-- COST    5 commands
-- include counters clock statistics ring rate
local note = ARGV[FIRST_ARG + 1]
if note ~= '' then redis.call('HSET', K.stats, 'pause_note', note) else redis.call('HDEL', K.stats, 'pause_note') end
counters.set('paused', rate.pause_end(ARGV[FIRST_ARG]))
if counters.shard.paused > 1 then counters.note_due(counters.shard.paused) end
statistics.flush()
ring.wake_if(counters.shard.paused == 0)
return 1
