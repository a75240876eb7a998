-- The data of a task that the end of its run needs. Used by settle.
--
-- Most outcomes are reported soon after their tasks were handed out, by the same function. So the function keeps the
-- data of the tasks that it handed out last, and then reads only the fields that can change while a task runs.
--
-- include calls keys counters clock task_record turns

local runs = {}

-- `kept`: by key of the record. `kept_before`: those that were kept when `kept` was last full. A task is kept together with the counters: while these
-- are the same table, no other function has given out tokens, so no other run of this task has this token.
local KEPT = 500
local kept, number_kept, kept_before = {}, 0, {}

-- Call it when all of `taken` are handed out. The tables of the tasks are kept, without what belongs to this call.
function runs.keep(worker)
  for _, task in ipairs(turns.taken) do
    if number_kept >= KEPT then kept, number_kept, kept_before = {}, 0, kept end
    task.state, task.worker, task.started, task.kept_with = 'started', worker, clock.now, counters.shard
    task.raw, task.owner, task.text, task.limit_list = nil, nil, nil, nil
    kept[task.key], number_kept = task, number_kept + 1
  end
end

-- The kept task, if it still runs as it was handed out.
local function kept_run(key)
  local task = kept[key] or kept_before[key]
  if not task then return nil end
  if kept[key] then kept[key], number_kept = nil, number_kept - 1 end
  kept_before[key] = nil
  if task.kept_with ~= counters.shard then return nil end
  local found = calls.attempt('HMGET', key, 'state', 'token', 'worker', 'waited')
  if not found or found[1] ~= 'started' or found[2] ~= task.token_text or found[3] ~= task.worker then return nil end
  task.waited = found[4]
  return task
end

-- The task, or nil if there is no record that can be used.
function runs.read(id) return kept_run(keys.task(id)) or task_record.read(id) end
