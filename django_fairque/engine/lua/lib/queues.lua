-- A user's queues: its critical, normal and scheduled tasks.
--
-- include calls keys counters clock writes records

local queues = {}

queues.BAND = 1e15              -- the range of scores for one priority in a normal queue; a stamp fits into it until 2056

-- Urgent and bulk tasks have two classes in addition to the six priorities: urgent tasks above the priorities in the
-- score, bulk tasks below them.
queues.CLASSES = { urgent = 7, bulk = 0 }
local LANES = { [7] = 'urgent', [0] = 'bulk' }
function queues.lane_of(priority) return LANES[priority] or 'normal' end

local READY = { [0] = 'ready:0', 'ready:1', 'ready:2', 'ready:3', 'ready:4', 'ready:5', 'ready:6', 'ready:7' }
queues.READY = READY

-- A scheduled task is in the registry of its state and in its user's index, and the user is in `due`. The user's score
-- in `due` is the earliest moment at which its first task can be due. Users take turns there (lib/due_work.lua), and a
-- task that leaves does not change the score.
function queues.schedule(user, id, due)
  writes.zadd(K['state:scheduled'], due, id)
  writes.zadd(keys.scheduled(user.name), due, id)
  user.first_due = math.min(user.first_due or due, due)
  counters.note_due(due)
  records.add(user, 'sched', 1)
end

function queues.unschedule(user, id)
  writes.zrem(K['state:scheduled'], id)
  writes.zrem(keys.scheduled(user.name), id)
  records.add(user, 'sched', -1)
end

function queues.add_ready(user, priority, amount)
  records.add(user, READY[priority], amount)
  if not LANES[priority] then user.ready = user.ready + amount end -- `ready` counts lane normal
  counters.count('depth:' .. priority, amount)
end

-- Return the score of a task in its user's normal queue: by priority, then by the moment at which it became ready.
function queues.score(task) return task.priority * queues.BAND + math.max(0, task.ready - clock.EPOCH) end

function queues.note_oldest(user, task)
  if LANES[task.priority] then return end
  if user.ready - user[READY[6]] == 0 or not user.since or task.ready < user.since then records.set(user, 'since', task.ready) end
end

-- Add a task to its user's queue for its priority.
function queues.enter(user, task, at_front)
  if task.priority == 6 then
    if task.behind then
      calls.attempt('LINSERT', keys.critical(user.name), 'AFTER', task.behind, task.id)
    else
      calls.attempt(at_front and 'LPUSH' or 'RPUSH', keys.critical(user.name), task.id)
    end
  else
    writes.zadd(keys.normal(user.name), queues.score(task), task.id)
    queues.note_oldest(user, task)
  end
  queues.add_ready(user, task.priority, 1)
end

-- Return the id at this index of a user's critical list, if that task was also given back and is older than `task`;
-- otherwise nil.
local function elder_at(task, index)
  local id = calls.attempt('LINDEX', keys.critical(task.user), index)
  local found = id and calls.attempt('HMGET', keys.task(id), 'token', 'ready')
  return found and found[1] and (tonumber(found[2]) or math.huge) < task.ready and id
end

-- Return the last older task, or nil. The older tasks are at the front of the list, ordered by the moment at which they
-- became ready.
local function elder_of(task)
  local low, high, step, behind = -1, 0, 1, nil -- `low`: the last index with an older task; `high`: the first index without one, or not yet examined
  local id = elder_at(task, high)
  while id do
    behind, low, high, step = id, high, high + step, step * 2
    id = elder_at(task, high)
  end
  while high - low > 1 do
    local middle = math.floor((low + high) / 2)
    id = elder_at(task, middle)
    if id then behind, low = id, middle else high = middle end
  end
  return behind
end

-- Sort returned tasks into the order in which they are written, the youngest first. For each critical task, find the
-- task behind which it belongs, because a list keeps no order by itself and other tasks may have returned before.
-- Nothing is written.
function queues.order_returning(tasks)
  table.sort(tasks, function(a, b)
    if a.ready ~= b.ready then return a.ready > b.ready end
    return a.token > b.token
  end)
  for _, task in ipairs(tasks) do
    if task.priority == 6 then task.behind = elder_of(task) end
  end
end
