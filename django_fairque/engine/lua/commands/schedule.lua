#!lua
-- Store, change or remove a schedule.
--
-- A change of declared schedules has the number of the version that declares them (`declare.lua`), and is refused if a
-- newer version is the current one. The change keeps the definition that it replaces or removes, so that the schedule
-- returns when the older version becomes the current one again.
--
-- KEYS    base reply schedules schedules:due schedules:last schedules:runs schedules:versions schedules:retired
-- ARGV    options, what (set remove), name, expected definition ('*' for any, '' for none), definition, next (us or ''); for declared
--         schedules also the number of the version ('' else), the definition and the last firing to be kept ('' for none), and the last
--         firing to be restored ('' for none)
-- REPLY   1 done, 0 the definition is not as expected (another process changed it meanwhile), 2 a newer version counts
-- COST    6 commands, 3 more for declared schedules
-- include clock
local what, name, expected, definition, following = ARGV[FIRST_ARG], ARGV[FIRST_ARG + 1], ARGV[FIRST_ARG + 2], ARGV[FIRST_ARG + 3], ARGV[FIRST_ARG + 4]
local version_number, replaced, last = ARGV[FIRST_ARG + 5] or '', ARGV[FIRST_ARG + 6] or '', ARGV[FIRST_ARG + 7] or ''
local known = redis.call('HGET', K.schedules, name) or ''
if known == definition and what == 'set' and expected ~= '*' then return 1 end -- the call is a repetition
if version_number ~= '' then
  local current = redis.call('HGET', K['schedules:versions'], '') or ''
  if tonumber(version_number) < tonumber(string.match(current, '^%d+') or 0) then return 2 end
end
if expected ~= '*' and expected ~= known then return 0 end
if replaced ~= '' then
  redis.call('HSET', K['schedules:retired'], name, replaced)
elseif version_number ~= '' then
  redis.call('HDEL', K['schedules:retired'], name)
end
if what == 'remove' then
  redis.call('ZREM', K['schedules:due'], name)
  redis.call('HDEL', K['schedules:last'], name)
  redis.call('HDEL', K['schedules:runs'], name)
  return redis.call('HDEL', K.schedules, name)
end
redis.call('HSET', K.schedules, name, definition)
if last ~= '' then redis.call('HSET', K['schedules:last'], name, last) end
if following == '' then
  redis.call('ZREM', K['schedules:due'], name)
else
  redis.call('ZADD', K['schedules:due'], following, name)
end
return 1
