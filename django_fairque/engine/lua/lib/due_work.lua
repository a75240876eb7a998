-- Handle everything that becomes due: scheduled tasks, ended leases, SLAs, starvation, expiry, rate limits, pauses that
-- end, and dependents of ended tasks. Each kind handles a limited number of due items in one consistent step: read all,
-- write all, commit. Used by sweep, and by pop and settle before they hand out tasks.
--
-- include numbers calls keys options counters clock slot statistics writes alerts records organizations users queues rate limits saving task_record deadlines moves leases dependents task_names sla

local due_work = {}

local PROMOTED = { 3, 3, 4 } -- the new priority of a starving task of priority 1, 2 and 3

function due_work.read_due(key, limit)
  local ids = redis.call('ZRANGEBYSCORE', key, '-inf', numbers.exact(clock.now), 'LIMIT', 0, limit)
  if #ids >= limit then due_work.has_more = true end
  return ids
end

-- Return the tasks with these ids that are in this state, with their users loaded. Other ids are removed from the
-- state's registry.
local function tasks_of(ids, state)
  local tasks = {}
  for _, id in ipairs(ids) do
    local task = task_record.read(id)
    if task and task.state == state then
      task.owner = users.load(task.user)
      moves.touch(task)
      tasks[#tasks + 1] = task
    else
      writes.zrem(K['state:' .. state], id)
      due_work.swept.dropped = due_work.swept.dropped + 1
    end
  end
  if #tasks > 0 then statistics.touch_minute() end
  if #tasks > 0 and (state == 'started' or state == 'queued') then task_names.touch() end
  slot.touch_all()
  return tasks
end

local function due_tasks(state, limit) return tasks_of(due_work.read_due(K['state:' .. state], limit), state) end

-- Add due tasks to their users' index of scheduled tasks if they are missing there. An older release, or damage of the
-- data, can be the cause.
local function note_unknown(limit)
  for _, task in ipairs(due_tasks('scheduled', limit)) do
    local due = numbers.read(task.raw.due) or clock.now
    writes.zadd(keys.scheduled(task.user), due, task.id)
    task.owner.first_due = math.min(task.owner.first_due or due, due)
    records.set(task.owner, 'sched', task.owner.sched) -- marks the user as changed, so that it is saved
  end
  saving.commit()
end

-- Users with due tasks take turns. Each user gets an equal part of the slice. A user with more due tasks continues
-- after the other users.
local function due_by_user(limit)
  local users_due = due_work.read_due(K.due, limit)
  local part, ids = math.max(1, math.floor(limit / #users_due)), {}
  for _, name in ipairs(users_due) do
    local key = keys.scheduled(name)
    local found = calls.attempt('ZRANGE', key, 0, part, 'WITHSCORES') or {}
    local size = 0
    while size < part and found[2 * size + 1] and tonumber(found[2 * size + 2]) <= clock.now do
      size = size + 1
      ids[#ids + 1] = found[2 * size - 1]
    end
    local next_due = tonumber(found[2 * size + 2])
    if next_due then
      writes.zadd(K.due, math.max(clock.now, next_due), name)
    else
      writes.zrem(K.due, name)
    end
  end
  return ids
end

local function queue_due(limit)
  local due = redis.call('ZCOUNT', K['state:scheduled'], '-inf', numbers.exact(clock.now))
  if due == 0 then return end
  local ids = due_by_user(limit)
  if due > #ids then due_work.has_more = true end
  if #ids == 0 then return note_unknown(limit) end
  for _, task in ipairs(tasks_of(ids, 'scheduled')) do
    queues.unschedule(task.owner, task.id)
    if task.expires and task.expires <= clock.now then
      moves.expire(task)
      due_work.swept.expired = due_work.swept.expired + 1
    else
      task.ready = math.min(clock.now, numbers.read(task.raw.due) or clock.now) -- the wait counts from the moment at which the task became due
      moves.to_queued(task.owner, task, false)
      due_work.swept.due = due_work.swept.due + 1
    end
  end
  saving.commit()
end

local function reap(limit)
  local tasks = due_tasks('started', limit)
  queues.order_returning(tasks)
  for _, task in ipairs(tasks) do
    leases.give_back_unreported(task, 'lease_ended', 'no renewal before the lease ended')
    due_work.swept.reaped = due_work.swept.reaped + 1
  end
  saving.commit()
end

-- Give a starving task a higher priority. The time that it has waited still counts, and `promoted` keeps its first
-- priority.
local function promote(task)
  local from = task.priority
  task.sla = task.sla or options.default_sla[from] -- the deadline to start does not change
  task.raw.promoted, task.raw.promoted_at = task.raw.promoted or numbers.exact(from), clock.now_text
  task.priority = PROMOTED[from]
  writes.zadd(keys.normal(task.user), task.priority * queues.BAND + math.max(0, task.ready - clock.EPOCH), task.id)
  queues.add_ready(task.owner, from, -1)
  queues.add_ready(task.owner, task.priority, 1)
  redis.call('HSET', task.key, 'priority', numbers.exact(task.priority), 'promoted', task.raw.promoted, 'promoted_at', clock.now_text,
    'sla', numbers.exact(task.sla))
  alerts.add('promoted', task, from)
  counters.count('promoted', 1)
  counters.count('promoted:' .. from, 1)
  statistics.tally('promoted', 1)
  due_work.swept.promoted = due_work.swept.promoted + 1
end

-- Handle queued tasks whose moment has come: at risk, overdue, starving or expired. Each warning is given once.
local function attend(limit)
  for _, task in ipairs(due_tasks('queued', limit)) do
    if task.expires and task.expires <= clock.now then
      task_names.note_sla(task)
      moves.leave_waiting(task.owner, task)
      moves.expire(task)
      due_work.swept.expired = due_work.swept.expired + 1
    else
      local notified = task.raw.warn
      if notified ~= 'late' and notified ~= 'missed' and deadlines.to_start(task) <= clock.now then
        task.raw.warn = 'late'
        task.raw.cause = sla.cause(task)
        counters.count('sla_overdue', 1)
        counters.count('sla_overdue:' .. task.priority, 1)
        due_work.swept.overdue = due_work.swept.overdue + 1
      end
      if not notified and deadlines.at_risk(task) <= clock.now then
        task.raw.warn = task.raw.warn or 'risk'
        alerts.add('at_risk', task, deadlines.to_start(task))
        counters.count('sla_at_risk', 1)
        counters.count('sla_at_risk:' .. task.priority, 1)
        due_work.swept.at_risk = due_work.swept.at_risk + 1
      end
      if task.raw.warn ~= notified then redis.call('HSET', task.key, 'warn', task.raw.warn, unpack(task.raw.cause and { 'cause', task.raw.cause } or {})) end
      local starving = deadlines.starving(task)
      if starving and starving <= clock.now then promote(task) end
      writes.zadd(K['state:queued'], deadlines.next_check(task), task.id)
    end
  end
  saving.commit()
end

local function expire_deferred(limit)
  for _, task in ipairs(due_tasks('deferred', limit)) do
    moves.leave_waiting(task.owner, task)
    moves.expire(task)
    due_work.swept.expired = due_work.swept.expired + 1
  end
  saving.commit()
end

local function free_one(entry)
  local first = string.sub(entry, 1, 1)
  if first == limits.PREFIX then return limits.reconsider(string.sub(entry, 2), users.load) end
  local one = first == organizations.PREFIX and organizations.ring_owner(string.sub(entry, 2)) or users.load(entry)
  if one.held then records.set(one, 'held', nil) end
  if one.debt then records.set(one, 'debt', nil) end
  if (one.paused or 0) > 1 and one.paused <= clock.now then
    records.set(one, 'paused', nil)
    records.set(one, 'pause_note', nil)
  end
  rate.forget_step(one)
  rate.hold_if_out_of_tokens(one)
  rate.note_pause(one)
  due_work.swept.freed = due_work.swept.freed + 1
end

-- Free the users whose rate allows another task, the users, organizations and the queue whose pauses have ended, and
-- the limits that open.
local function free_throttled(limit)
  for _, entry in ipairs(due_work.read_due(K.throttled, limit)) do free_one(entry) end
  if counters.shard.paused > 1 and counters.shard.paused <= clock.now then counters.set('paused', 0) end
  slot.touch_all()
  saving.commit()
end

function due_work.start(limit)
  due_work.swept = {
    due = 0, reaped = 0, expired = 0, overdue = 0, freed = 0, forgotten = 0, dropped = 0, at_risk = 0, promoted = 0,
  }
  due_work.has_more = false
  queue_due(limit)
  reap(limit)
  attend(limit)
  expire_deferred(limit)
  free_throttled(limit)
  if dependents.resolve(limit) then due_work.has_more = true end
end

-- Set the moment at which the next work is due. Work that lets no task start, such as the deletion of ended tasks, is
-- ignored, because a pop must not do such work before it hands out tasks.
function due_work.set_next()
  if due_work.has_more or redis.call('EXISTS', K.resolving) == 1 then return counters.set('look', clock.now) end
  local earliest = counters.shard.paused > 1 and counters.shard.paused or clock.NEVER
  for _, name in ipairs({ 'state:scheduled', 'state:started', 'state:queued', 'state:deferred', 'throttled' }) do
    local head = redis.call('ZRANGE', K[name], 0, 0, 'WITHSCORES')
    if head[2] then earliest = math.min(earliest, tonumber(head[2])) end
  end
  counters.set('look', earliest)
end

function due_work.start_if_due()
  if clock.now < counters.shard.look then return end
  due_work.start(options.sweep_limit)
  due_work.set_next()
end
