#!lua flags=allow-oom
-- Tasks of another shard wait for these: say what has become of them, and tell that shard when they end.
--
-- KEYS    base
-- ARGV    options, the shard that asks, n (0..1000), n ids
-- REPLY   for each: open, finished, failed, canceled, or '' when it is not known
-- COST    2 commands each, 2 more for one that has not ended
-- include base ring organization user recent_usage task
local shard, size = ARGV[A], tonumber(ARGV[A + 1])
local states, tasks = {}, {}
for i = 1, size do
  local t = read_task(ARGV[A + 1 + i])
  local is_over = t and (t.state == 'finished' or t.state == 'canceled')
  states[i] = not t and '' or (is_over or t.state == 'failed') and t.state or 'open'
  if t and not is_over then
    touch(watchers_key(t.id))
    tasks[#tasks + 1] = t
  end
end
touch_all()
for _, t in ipairs(tasks) do
  redis.call('HSET', task_key(t.id), 'waited', '1', 'watched', '1')
  sadd(watchers_key(t.id), shard)
end
flush()
flush_stats()
return states
