#!lua flags=allow-oom
-- Notify the tasks that wait here for tasks on other shards which have ended, in slices. Known ends change nothing.
--
-- KEYS    base
-- ARGV    options, n (0..1000), then n × (id, finished failed or canceled)
-- REPLY   how many were news
-- COST    3 commands each, and those of telling at most 50 dependents
-- include heads base ring organization recent_usage user bounds task dependents
local news = {}
for i = 1, tonumber(ARGV[FIRST_ARG]) do
  local mirror, state = read_mirror(ARGV[FIRST_ARG + 2 * i - 1]), ARGV[FIRST_ARG + 2 * i]
  if mirror and mirror.state ~= state and mirror.state ~= 'finished' and mirror.state ~= 'canceled' then
    news[#news + 1] = { id = mirror.id, state = state }
  end
end
for i, mirror in ipairs(news) do
  redis.call('HSET', remote_key(mirror.id), 'state', mirror.state)
  zadd(K.resolving, stat.resolve_turn + i - 1, mirror.id) -- their users are not known here
  look_at(now)
end
commit()
resolve(sweep_limit)
wake_if(ring_grew)
return #news
