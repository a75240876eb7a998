-- A user's queues: its critical, normal and scheduled tasks.
--
-- include calls keys counters clock writes records

local queues = {}

queues.BAND = 1e15              -- one priority's room in a normal queue's score; a stamp fits until 2056

-- Urgent and bulk tasks have classes next to the six priorities: above and below them in the score.
queues.CLASSES = { urgent = 7, bulk = 0 }
local LANES = { [7] = 'urgent', [0] = 'bulk' }
function queues.lane_of(priority) return LANES[priority] or 'normal' end

local READY = { [0] = 'ready:0', 'ready:1', 'ready:2', 'ready:3', 'ready:4', 'ready:5', 'ready:6', 'ready:7' }
queues.READY = READY

-- A scheduled task stands in the registry and among its user's, and its user in `due`. That says only by when the user's first
-- one is due at the earliest: users take turns there (lib/due_work.lua), and a task that leaves changes nothing.
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

-- Where it stands in its user's normal queue: by priority, then by the moment it became ready.
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

-- The id at this place of a user's critical list, if that one has come back as well and is elder: nil otherwise.
local function elder_at(task, index)
  local id = calls.attempt('LINDEX', keys.critical(task.user), index)
  local found = id and calls.attempt('HMGET', keys.task(id), 'token', 'ready')
  return found and found[1] and (tonumber(found[2]) or math.huge) < task.ready and id
end

-- The last elder one, or nil: they stand at the front, by the moment they became ready.
local function elder_of(task)
  local low, high, step, behind = -1, 0, 1, nil -- the last that is one; the first that is not, or has not been looked at
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

-- Sort tasks that come back into the order in which they are written, the youngest first. Find the task behind which each
-- critical one belongs: a list keeps no order by itself, and some may have come back before. Nothing is written.
function queues.order_returning(tasks)
  table.sort(tasks, function(a, b)
    if a.ready ~= b.ready then return a.ready > b.ready end
    return a.token > b.token
  end)
  for _, task in ipairs(tasks) do
    if task.priority == 6 then task.behind = elder_of(task) end
  end
end
