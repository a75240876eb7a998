-- Everything that becomes due: scheduled tasks, leases that ended, SLAs, starvation, expiry, users whose rate allows another task,
-- pauses that end, dependents of ended tasks. Each kind takes a limited number of those whose time has come and hands them to a handler, as one
-- consistent step (read all, write all, commit). Used by sweep, and by pop and settle before they hand out tasks.

local swept, more_to_sweep
each_call(function()
  swept = {
    due = 0, reaped = 0, expired = 0, overdue = 0, freed = 0, forgotten = 0, dropped = 0, at_risk = 0, promoted = 0,
  }
  more_to_sweep = false
end)

local function due_members(key, limit)
  local ids = redis.call('ZRANGEBYSCORE', key, '-inf', exact(now), 'LIMIT', 0, limit)
  if #ids >= limit then more_to_sweep = true end
  return ids
end

local start_due -- what lets work start: cheap to skip, because `look` says when the next of it is due
do -- each kind of it is its own

-- Read the tasks with these ids that are in this state, with their users. Other ids are dropped from the state's
-- registry.
local function tasks_of(ids, state)
  local tasks = {}
  for _, id in ipairs(ids) do
    local task = read_task(id)
    if task and task.state == state then
      task.owner = load_user(task.user)
      touch_moves(task)
      tasks[#tasks + 1] = task
    else
      zrem(K['state:' .. state], id)
      swept.dropped = swept.dropped + 1
    end
  end
  if #tasks > 0 then touch_minute() end
  touch_all()
  return tasks
end

local function due_tasks(state, limit) return tasks_of(due_members(K['state:' .. state], limit), state) end

-- Scheduled tasks of which `due` does not know (a version before, or damage): their users are noted.
local function note_unknown(limit)
  for _, task in ipairs(due_tasks('scheduled', limit)) do
    local due = number(task.raw.due) or now
    zadd(scheduled_key(task.user), due, task.id)
    task.owner.first_due = math.min(task.owner.first_due or due, due)
    set(task.owner, 'sched', task.owner.sched) -- to be saved
  end
  commit()
end

-- Users with due tasks take turns: each gets an equal part of the slice. A user with more due tasks continues after the others.
local function due_by_user(limit)
  local users_due = due_members(K.due, limit)
  local part, ids = math.max(1, math.floor(limit / #users_due)), {}
  for _, name in ipairs(users_due) do
    local key = scheduled_key(name)
    local found = attempt('ZRANGE', key, 0, part, 'WITHSCORES') or {}
    local size = 0
    while size < part and found[2 * size + 1] and tonumber(found[2 * size + 2]) <= now do
      size = size + 1
      ids[#ids + 1] = found[2 * size - 1]
    end
    local next_due = tonumber(found[2 * size + 2])
    if next_due then
      zadd(K.due, math.max(now, next_due), name)
    else
      zrem(K.due, name)
    end
  end
  return ids
end

local function queue_due(limit)
  local due = redis.call('ZCOUNT', K['state:scheduled'], '-inf', exact(now))
  if due == 0 then return end
  local ids = due_by_user(limit)
  if due > #ids then more_to_sweep = true end
  if #ids == 0 then return note_unknown(limit) end
  for _, task in ipairs(tasks_of(ids, 'scheduled')) do
    unschedule(task.owner, task.id)
    if task.expires and task.expires <= now then
      expire(task)
      swept.expired = swept.expired + 1
    else
      task.ready = math.min(now, number(task.raw.due) or now) -- waiting counts from when it became due
      to_queued(task.owner, task, false)
      swept.due = swept.due + 1
    end
  end
  commit()
end

local function reap(limit)
  local tasks = due_tasks('started', limit)
  order_returning(tasks)
  for _, task in ipairs(tasks) do
    return_unreported(task, 'lease_ended', 'no renewal before the lease ended')
    swept.reaped = swept.reaped + 1
  end
  commit()
end

-- Gives a starving task the next priority. The time that it has waited still counts, and `promoted` keeps its first priority.
local function promote(task)
  local from = task.priority
  task.sla = task.sla or default_sla[from] -- the deadline to start stays as it was
  task.raw.promoted, task.raw.promoted_at = task.raw.promoted or exact(from), now_text
  task.priority = PROMOTED[from]
  zadd(normal_key(task.user), task.priority * BAND + math.max(0, task.ready - EPOCH), task.id)
  add_ready(task.owner, from, -1)
  add_ready(task.owner, task.priority, 1)
  redis.call('HSET', task.key, 'priority', exact(task.priority), 'promoted', task.raw.promoted, 'promoted_at', now_text,
    'sla', exact(task.sla))
  alert('promoted', task, from)
  count('promoted', 1)
  count('promoted:' .. from, 1)
  tally('promoted', 1)
  swept.promoted = swept.promoted + 1
end

-- Queued tasks whose moment has come: at risk, overdue, starving, expired. Each warning is given once.
local function attend(limit)
  for _, task in ipairs(due_tasks('queued', limit)) do
    if task.expires and task.expires <= now then
      leave_waiting(task.owner, task)
      expire(task)
      swept.expired = swept.expired + 1
    else
      local notified = task.raw.warn
      if notified ~= 'late' and notified ~= 'missed' and deadline_of(task) <= now then
        task.raw.warn = 'late'
        count('sla_overdue', 1)
        count('sla_overdue:' .. task.priority, 1)
        swept.overdue = swept.overdue + 1
      end
      if not notified and risk_of(task) <= now then
        task.raw.warn = task.raw.warn or 'risk'
        alert('at_risk', task, deadline_of(task))
        count('sla_at_risk', 1)
        count('sla_at_risk:' .. task.priority, 1)
        swept.at_risk = swept.at_risk + 1
      end
      if task.raw.warn ~= notified then redis.call('HSET', task.key, 'warn', task.raw.warn) end
      local starving = starving_at(task)
      if starving and starving <= now then promote(task) end
      zadd(K['state:queued'], queued_look(task), task.id)
    end
  end
  commit()
end

local function expire_deferred(limit)
  for _, task in ipairs(due_tasks('deferred', limit)) do
    leave_waiting(task.owner, task)
    expire(task)
    swept.expired = swept.expired + 1
  end
  commit()
end

-- Users whose rate allows another task, and users, organizations and the queue when their pauses end.
local function free_throttled(limit)
  for _, entry in ipairs(due_members(K.throttled, limit)) do
    local is_organization = string.byte(entry) == string.byte(AS_ORGANIZATION)
    local one = is_organization and ring_owner_of(string.sub(entry, 2)) or load_user(entry)
    if one.held then set(one, 'held', nil) end
    if one.debt then set(one, 'debt', nil) end
    if (one.paused or 0) > 1 and one.paused <= now then
      set(one, 'paused', nil)
      set(one, 'pause_note', nil)
    end
    rate.forget_step(one)
    rate.hold_if_out_of_tokens(one)
    rate.note_pause(one)
    swept.freed = swept.freed + 1
  end
  if stat.paused > 1 and stat.paused <= now then set_stat('paused', 0) end
  touch_all()
  commit()
end

function start_due(limit)
  queue_due(limit)
  reap(limit)
  attend(limit)
  expire_deferred(limit)
  free_throttled(limit)
  if resolve(limit) then more_to_sweep = true end
end

end

-- Work that lets no task start (forgetting) is left out: it must not delay a pop.
local function set_next_look()
  if more_to_sweep or redis.call('EXISTS', K.resolving) == 1 then return set_stat('look', now) end
  local earliest = stat.paused > 1 and stat.paused or NEVER
  for _, name in ipairs({ 'state:scheduled', 'state:started', 'state:queued', 'state:deferred', 'throttled' }) do
    local head = redis.call('ZRANGE', K[name], 0, 0, 'WITHSCORES')
    if head[2] then earliest = math.min(earliest, tonumber(head[2])) end
  end
  set_stat('look', earliest)
end

local function start_due_if_needed()
  if now < stat.look then return end
  start_due(sweep_limit)
  set_next_look()
end
