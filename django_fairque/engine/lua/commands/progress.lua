#!lua
-- Record how far a leased task is.
--
-- KEYS    base
-- ARGV    options, id, token, progress (opaque bytes)
-- REPLY   1 recorded, 0 stale lease
-- COST    4 commands
-- include base
local held = redis.call('HMGET', task_key(ARGV[FIRST_ARG]), 'state', 'token')
if held[1] ~= 'started' or held[2] ~= ARGV[FIRST_ARG + 1] then return 0 end
redis.call('HSET', task_key(ARGV[FIRST_ARG]), 'progress', ARGV[FIRST_ARG + 2])
return 1
