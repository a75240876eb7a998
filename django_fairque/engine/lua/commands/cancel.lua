#!lua flags=allow-oom
-- Cancel tasks that have not ended. Also cancel the tasks that depend on them, except those whose policy is to run
-- anyhow.
--
-- KEYS    base reply
-- ARGV    options, reason, n (1..1000), then n ids
-- REPLY   one digit per task: 0 unknown, 1 canceled, 2 ended before
-- COST    9 commands a task
-- include keys options clock replies slot statistics ring users saving task_record moves dependents removal
local stored = redis.call('GET', K.reply)
if stored then return stored end
local reason, size = ARGV[FIRST_ARG], tonumber(ARGV[FIRST_ARG + 1])
local codes, tasks, seen = {}, {}, {}
for i = 1, size do
  local id = ARGV[FIRST_ARG + 1 + i]
  local task = task_record.read(id)
  if not task then
    codes[i] = 0
  elseif seen[id] or task.state == 'finished' or task.state == 'failed' or task.state == 'canceled' then
    codes[i] = 2
  else
    seen[id] = true
    codes[i] = 1
    task.owner = users.load(task.user)
    moves.touch(task)
    if task.state == 'started' then slot.touch(keys.revoked(task.worker)) end
    tasks[#tasks + 1] = task
  end
end
if #tasks > 0 then statistics.touch_minute() end
slot.touch_all()
for _, task in ipairs(tasks) do removal.cancel(task, reason) end
saving.commit()
dependents.resolve(options.sweep_limit)
ring.wake_if(ring.has_grown)
local reply = table.concat(codes)
redis.call('SET', K.reply, reply, 'PX', replies.ttl(#reply))
statistics.flush()
return reply
