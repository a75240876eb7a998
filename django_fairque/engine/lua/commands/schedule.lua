#!lua
-- Keep, change or remove a recurring piece of work.
--
-- KEYS    base reply schedules schedules:due schedules:last
-- ARGV    options, what (set remove), name, expected definition ('*' for any, '' for none), definition, next (us or '')
-- REPLY   1 done, 0 it is not as expected (somebody changed it meanwhile)
-- COST    5 commands
-- include heads base
local what, name, expected, definition, following = ARGV[FIRST_ARG], ARGV[FIRST_ARG + 1], ARGV[FIRST_ARG + 2], ARGV[FIRST_ARG + 3], ARGV[FIRST_ARG + 4]
local known = redis.call('HGET', K.schedules, name) or ''
if known == definition and what == 'set' and expected ~= '*' then return 1 end -- this very call repeated
if expected ~= '*' and expected ~= known then return 0 end
if what == 'remove' then
  redis.call('ZREM', K['schedules:due'], name)
  redis.call('HDEL', K['schedules:last'], name)
  return redis.call('HDEL', K.schedules, name)
end
redis.call('HSET', K.schedules, name, definition)
if following == '' then
  redis.call('ZREM', K['schedules:due'], name)
else
  redis.call('ZADD', K['schedules:due'], following, name)
end
return 1
