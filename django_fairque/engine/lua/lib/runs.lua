-- Keeps in memory the data of running tasks that is needed when their runs end. Used by settle.
--
-- Most outcomes are reported soon after their tasks were handed out, to the same function. So the function keeps the
-- data of the tasks that it handed out last, and a call that reports outcomes checks with one command whether the
-- records of these tasks exist.
--
-- include calls keys counters task_record sla

local runs = {}

-- `kept` has the tasks by the key of their record; when `kept` is full, it becomes `kept_before`, and a new table
-- begins. A task is kept together with the table of counters: as long as that table is the same, nothing but this
-- function has written to the shard. Invariant: if this function changes a record while its task runs or at the end of
-- the run, the same call calls `runs.forget`.
local KEPT = 500
local kept, number_kept, kept_before = {}, 0, {}
local confirmed = {} -- by key: the kept tasks of this call whose records exist

-- Keep the tables of these tasks for later calls of the command. Call this function after the tasks are handed out: it removes
-- data from the tables that only the present command needs.
function runs.keep(tasks, worker, started)
  for _, task in ipairs(tasks) do
    if number_kept >= KEPT then kept, number_kept, kept_before = {}, 0, kept end
    task.state, task.worker, task.started, task.kept_with = 'started', worker, started, counters.shard
    sla.note_start(task)
    task.raw, task.owner, task.text, task.limit_list = nil, nil, nil, nil
    kept[task.key], number_kept = task, number_kept + 1
  end
end

function runs.forget(key)
  if kept[key] then kept[key], number_kept = nil, number_kept - 1 end
  kept_before[key] = nil
end

-- Find the kept tasks among these ids that still have the lease with which they were handed out. If the record of one
-- of them is gone, none of the kept data is used.
function runs.confirm(ids)
  confirmed = {}
  local wanted, found = {}, {}
  for _, id in ipairs(ids) do
    local key = keys.task(id)
    local task = kept[key] or kept_before[key]
    if task and task.kept_with == counters.shard and not found[key] then wanted[#wanted + 1], found[key] = key, task end
  end
  for first = 1, #wanted, calls.CHUNK do
    local last = math.min(first + calls.CHUNK - 1, #wanted)
    if redis.call('EXISTS', unpack(wanted, first, last)) < last - first + 1 then return end
  end
  confirmed = found
end

-- Return the task, or nil if it has no usable record.
function runs.read(id) return confirmed[keys.task(id)] or task_record.read(id) end
