#!lua flags=allow-oom
-- Return the states of tasks for which tasks of another shard wait, and notify that shard when they end.
--
-- KEYS    base
-- ARGV    options, the shard that asks, n (0..1000), n ids
-- REPLY   for each: open, finished, failed, canceled, or '' when it is not known
-- COST    2 commands each, 2 more for one that has not ended
-- include keys clock slot statistics writes task_record runs
local shard, size = ARGV[FIRST_ARG], tonumber(ARGV[FIRST_ARG + 1])
local states, tasks = {}, {}
for i = 1, size do
  local task = task_record.read(ARGV[FIRST_ARG + 1 + i])
  local is_over = task and (task.state == 'finished' or task.state == 'canceled')
  states[i] = not task and '' or (is_over or task.state == 'failed') and task.state or 'open'
  if task and not is_over then
    slot.touch(keys.watchers(task.id))
    tasks[#tasks + 1] = task
  end
end
slot.touch_all()
for _, task in ipairs(tasks) do
  redis.call('HSET', task.key, 'waited', '1', 'watched', '1')
  runs.forget(task.key)
  writes.sadd(keys.watchers(task.id), shard)
end
writes.flush()
statistics.flush()
return states
