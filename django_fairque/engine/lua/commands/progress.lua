#!lua
-- Record how far a leased task is.
--
-- KEYS    base
-- ARGV    options, id, token, progress (opaque bytes)
-- REPLY   1 recorded, 0 stale lease
-- COST    4 commands
-- include base
local held = redis.call('HMGET', task_key(ARGV[A]), 'state', 'token')
if held[1] ~= 'started' or held[2] ~= ARGV[A + 1] then return 0 end
redis.call('HSET', task_key(ARGV[A]), 'progress', ARGV[A + 2])
return 1
