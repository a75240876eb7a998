#!lua
-- Record the number of shards of the queue. Once the queue holds data, the number stays unless the caller forces a
-- change.
--
-- KEYS    base shards
-- ARGV    options, number of shards, 1 to change it whatever was known, number of servers if each has one shard of a queue (else 0)
-- REPLY   the number that holds: what was written down before, else 1 if the queue was used without; below 0 if this server has
--         another shard of the queue, which is -1 minus this reply: then nothing is written
-- COST    4 commands, one more for each other server
-- include clock
local wanted, is_forced, servers = ARGV[FIRST_ARG], ARGV[FIRST_ARG + 1] == '1', tonumber(ARGV[FIRST_ARG + 2])
if not is_forced then
  local known = redis.call('GET', K.shards)
  if known then return tonumber(known) end
  if redis.call('EXISTS', K.stats) == 1 then return 1 end
end
if servers > 0 then -- these servers are not nodes of a cluster, so this script may read keys of other shards
  local before, own = string.match(P, '^(.*:)(%d+)}:$')
  for shard = 0, servers - 1 do
    if shard ~= tonumber(own) and redis.call('EXISTS', before .. shard .. '}:shards') == 1 then return -1 - shard end
  end
end
redis.call('SET', K.shards, wanted)
return tonumber(wanted)
