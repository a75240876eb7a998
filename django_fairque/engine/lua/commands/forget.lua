#!lua flags=allow-oom
-- Remove ended tasks before their retention passes.
--
-- KEYS    base
-- ARGV    options, n (1..1000), then n ids
-- REPLY   how many were removed (tasks that have not ended are left alone)
-- COST    1 command a task and 2; 4 more for a dead letter or a task with a large result
-- include heads base ring organization recent_usage user bounds task removal
local ended, removed = { finished = {}, failed = {}, canceled = {} }, 0
for i = 1, tonumber(ARGV[FIRST_ARG]) do
  local id = ARGV[FIRST_ARG + i]
  local task = read_task(id)
  if task and ended[task.state] then
    table.insert(ended[task.state], id)
    removed = removed + 1
    touch(payload_key(id))
    touch(history_key(id))
    touch(P .. 'logs:' .. id)
  end
end
touch_all()
for state, ids in pairs(ended) do forget(state, ids) end
commit()
return removed
