#!lua flags=allow-oom
-- Notify the tasks on this shard that depend on ended tasks of other shards. A call notifies at most 50 dependents. If
-- the end of a task was already reported, the call changes nothing for this task.
--
-- KEYS    base
-- ARGV    options, n (0..1000), then n × (id, finished failed or canceled)
-- REPLY   how many were news
-- COST    3 commands each, and those of telling at most 50 dependents
-- include keys options counters clock writes ring saving mirrors dependents
local news = {}
for i = 1, tonumber(ARGV[FIRST_ARG]) do
  local mirror, state = mirrors.read(ARGV[FIRST_ARG + 2 * i - 1]), ARGV[FIRST_ARG + 2 * i]
  if mirror and mirror.state ~= state and mirror.state ~= 'finished' and mirror.state ~= 'canceled' then
    news[#news + 1] = { id = mirror.id, state = state }
  end
end
for i, mirror in ipairs(news) do
  redis.call('HSET', keys.remote(mirror.id), 'state', mirror.state)
  writes.zadd(K.resolving, counters.shard.resolve_turn + i - 1, mirror.id) -- the users of these tasks are not known on this shard
  counters.note_due(clock.now)
end
saving.commit()
dependents.resolve(options.sweep_limit)
ring.wake_if(ring.has_grown)
return #news
