#!lua flags=allow-oom
-- Delete ended tasks at once, before their retention period ends.
--
-- KEYS    base
-- ARGV    options, n (1..1000), then n ids
-- REPLY   how many were removed (tasks that have not ended are left alone)
-- COST    1 command a task and 2; 4 more for a dead letter or a task with a large result
-- include keys clock slot saving task_record removal
local ended, removed = { finished = {}, failed = {}, canceled = {} }, 0
for i = 1, tonumber(ARGV[FIRST_ARG]) do
  local id = ARGV[FIRST_ARG + i]
  local task = task_record.read(id)
  if task and ended[task.state] then
    table.insert(ended[task.state], id)
    removed = removed + 1
    slot.touch(keys.payload(id))
    slot.touch(keys.history(id))
    slot.touch(P .. 'logs:' .. id)
  end
end
slot.touch_all()
for state, ids in pairs(ended) do removal.forget(state, ids) end
saving.commit()
return removed
