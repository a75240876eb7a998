#!lua flags=allow-oom
-- Cancel tasks that have not ended. Also cancel the tasks that depend on them, except those whose policy is to run
-- anyhow.
--
-- KEYS    base reply
-- ARGV    options, reason, n (1..1000), then n ids, and of an act on many tasks its id, turn and new cursor (`lib/acts.lua`). With an id, also an
--         empty one, only tasks that are queued or scheduled are canceled
-- REPLY   one digit per task: 0 unknown, 1 canceled, 2 ended before. `-` if another worker has taken this step of the act: nothing is changed
-- COST    9 commands a task
-- include keys options clock slot statistics writes users saving task_record moves dependents removal acts task_names
local stored = redis.call('GET', K.reply)
if stored then return stored end
local reason, size = ARGV[FIRST_ARG], tonumber(ARGV[FIRST_ARG + 1])
local codes, tasks, seen = {}, {}, {}
local act, is_waiting_only = acts.read(FIRST_ARG + 2 + size), ARGV[FIRST_ARG + 2 + size] ~= nil
if act and act.is_late then return '-' end
for i = 1, size do
  local id = ARGV[FIRST_ARG + 1 + i]
  local task = task_record.read(id)
  if not task then
    codes[i] = 0
  elseif seen[id] or task.state == 'finished' or task.state == 'failed' or task.state == 'canceled'
    or is_waiting_only and task.state ~= 'queued' and task.state ~= 'scheduled' then
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
if #tasks > 0 then
  statistics.touch_minute()
  task_names.touch()
end
slot.touch_all()
for _, task in ipairs(tasks) do
  if task_names.note_sla(task) then redis.call('HSET', task.key, 'again', 1) end
  removal.cancel(task, act and act.reason or reason)
  if act then
    redis.call('HSET', task.key, 'act', act.id)
    writes.zadd(K['state:canceled'], clock.now + math.max(acts.UNDO_TTL, options.result_ttl), task.id)
  end
end
if act then acts.save_changed(act, tasks, size) end
saving.commit()
dependents.resolve(options.sweep_limit)
return saving.finish(table.concat(codes))
