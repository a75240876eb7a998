-- The data of a task that the end of its run needs. Used by settle.
--
-- Most outcomes are reported soon after their tasks were handed out, by the same function. So the function keeps the data of the tasks that it
-- handed out last, and a call that ends some of them asks with one command whether their records are there.
--
-- include calls keys counters task_record

local runs = {}

-- `kept`: by key of the record. `kept_before`: those that were kept when `kept` was last full. A task is kept together with the counters: while
-- these are the same table, nothing but this function has written. Invariant: what this function changes of a record while its task runs, or
-- at the end of the run, is preceded or followed by `runs.forget` in the same call.
local KEPT = 500
local kept, number_kept, kept_before = {}, 0, {}
local confirmed = {} -- by key: the kept tasks of this call that have a record

-- Call it when all of these tasks are handed out. Their tables are kept, without what belongs to this call.
function runs.keep(tasks, worker, started)
  for _, task in ipairs(tasks) do
    if number_kept >= KEPT then kept, number_kept, kept_before = {}, 0, kept end
    task.state, task.worker, task.started, task.kept_with = 'started', worker, started, counters.shard
    task.raw, task.owner, task.text, task.limit_list = nil, nil, nil, nil
    kept[task.key], number_kept = task, number_kept + 1
  end
end

function runs.forget(key)
  if kept[key] then kept[key], number_kept = nil, number_kept - 1 end
  kept_before[key] = nil
end

-- Find out which of the tasks with these ids are kept, and still run as they were handed out. If the record of one is gone, none counts.
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

-- The task, or nil if there is no record that can be used.
function runs.read(id) return confirmed[keys.task(id)] or task_record.read(id) end
