#!lua flags=allow-oom
-- Stop or resume handing out tasks of this shard (pushes go on).
--
-- KEYS    base
-- ARGV    options, paused (0; 1; the moment (us) at which the pause ends; or its length (us) as a negative number), its note ('' for none)
-- REPLY   1
-- COST    5 commands
-- include heads base ring organization recent_usage user
local note = ARGV[FIRST_ARG + 1]
if note ~= '' then redis.call('HSET', K.stats, 'pause_note', note) else redis.call('HDEL', K.stats, 'pause_note') end
set_stat('paused', rate.pause_end(ARGV[FIRST_ARG]))
if stat.paused > 1 then look_at(stat.paused) end
flush_stats()
wake_if(stat.paused == 0)
return 1
