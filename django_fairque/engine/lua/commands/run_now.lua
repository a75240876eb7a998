#!lua flags=allow-oom
-- Let waiting tasks start now. A SCHEDULED task becomes QUEUED. A DEFERRED task loses its dependencies and continues as
-- if they had finished.
--
-- KEYS    base reply
-- ARGV    options, the state that they are taken from (scheduled or deferred), n (1..1000), then n ids
-- REPLY   one digit per task: 0 unknown, 1 changed, 2 not in that state (any more)
-- COST    10 commands a task, and 3 for each of its dependencies
-- include keys clock slot statistics users saving task_record moves dependents
local stored = redis.call('GET', K.reply)
if stored then return stored end
local state, size = ARGV[FIRST_ARG], tonumber(ARGV[FIRST_ARG + 1])
local codes, tasks, seen = {}, {}, {}
for i = 1, size do
  local id = ARGV[FIRST_ARG + 1 + i]
  local task = task_record.read(id)
  if not task then
    codes[i] = 0
  elseif seen[id] or task.state ~= state then
    codes[i] = 2
  else
    seen[id] = true
    codes[i] = 1
    task.owner = users.load(task.user)
    moves.touch(task)
    tasks[#tasks + 1] = task
  end
end
if #tasks > 0 then statistics.touch_minute() end
slot.touch_all()
for _, task in ipairs(tasks) do
  moves.leave_waiting(task.owner, task)
  if state == 'scheduled' then
    redis.call('HSET', keys.task(task.id), 'due', clock.now_text)
    task.raw.due = clock.now_text
  end
  dependents.go_on(task)
end
saving.commit()
return saving.finish(table.concat(codes))
