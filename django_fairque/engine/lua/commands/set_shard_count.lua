#!lua
-- Write down on how many shards the queue lies; once it holds anything this does not change by itself.
--
-- KEYS    base shards
-- ARGV    options, number of shards, 1 to change it whatever was known
-- REPLY   the number that holds: what was written down before, else 1 if the queue was used without
-- COST    4 commands
-- include base
local wanted, is_forced = ARGV[FIRST_ARG], ARGV[FIRST_ARG + 1] == '1'
if not is_forced then
  local known = redis.call('GET', K.shards)
  if known then return tonumber(known) end
  if redis.call('EXISTS', K.stats) == 1 then return 1 end
end
redis.call('SET', K.shards, wanted)
return tonumber(wanted)
