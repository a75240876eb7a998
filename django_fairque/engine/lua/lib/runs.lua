-- What the end of a run needs of its task. Used by settle.
--
-- Most outcomes are reported soon after their tasks were handed out, by the same function. So it keeps what it knows of the tasks that
-- it handed out last, and then reads only what can change while a task runs, and what shows that this is the same run.

local runs = {} -- in one table: a script has room for 200 names
do

local KEPT = 500
local kept, number_kept = {}, 0 -- by key of the record

-- Call it when all of `taken` are handed out. The tables of the tasks are kept, without what belongs to this call.
function runs.keep(worker)
  if number_kept + #taken > KEPT then kept, number_kept = {}, 0 end
  for _, task in ipairs(taken) do
    task.state, task.worker, task.started, task.started_text = 'started', worker, now, now_text
    task.raw, task.owner = nil, nil
    if not kept[task.key] then number_kept = number_kept + 1 end
    kept[task.key] = task
  end
end

-- The kept task, if it still runs as it was handed out.
local function kept_run(key)
  local task = kept[key]
  if not task then return nil end
  kept[key], number_kept = nil, number_kept - 1
  local found = attempt('HMGET', key, 'state', 'token', 'started', 'worker', 'waited')
  if not found or found[1] ~= 'started' or found[2] ~= task.token_text then return nil end
  if found[3] ~= task.started_text or found[4] ~= task.worker then return nil end
  task.waited = found[5]
  return task
end

-- The task, or nil if there is no record that can be used. Most tasks finish, so this is half of what `read_task` reads.
function runs.read(id)
  local key = task_key(id)
  local task = kept_run(key)
  if task then return task end
  local found = attempt('HMGET', key, 'state', 'user', 'priority', 'token', 'done', 'worker', 'started', 'cost', 'ready',
    'created', 'waited', 'charge', 'companion', 'size')
  if not found then return nil end
  local priority = PRIORITIES[found[3]]
  if not (found[1] and found[2] and priority) then return nil end
  return {
    id = id, key = key, state = found[1], user = found[2], priority = priority, token = found[4] and number(found[4]), token_text = found[4],
    done = found[5], worker = found[6] or '', started = found[7] and number(found[7]),
    cost = found[8] and number(found[8]), ready = number(found[9] or found[10]) or now, waited = found[11],
    charged_as = found[12] and number(found[12]) or 0, is_companion = found[13] == '1', size = found[14] and number(found[14]),
    owner = false, index = 0, took = false, body = '',
  }
end

end
