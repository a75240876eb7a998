#!lua flags=allow-oom
-- Stop or resume handing out tasks of this shard (pushes go on).
--
-- KEYS    base
-- ARGV    options, paused (0/1)
-- REPLY   1
-- COST    4 commands
-- include base ring organization user
set_stat('paused', tonumber(ARGV[FIRST_ARG]))
flush_stats()
wake_if(stat.paused == 0)
return 1
