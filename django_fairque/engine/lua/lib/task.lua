-- A task's record (`read_task`), and its moves between states. A move reads nothing: the caller has read the task and its user
-- before the first write. Used by all commands that change tasks.

local read_task
do

local PRIORITIES = { ['1'] = 1, ['2'] = 2, ['3'] = 3, ['4'] = 4, ['5'] = 5, ['6'] = 6 }

-- Read the fields that only tasks need that run, ran before or were dead letters: most tasks don't when they are handed
-- out.
local function read_past(task, raw)
  task.worker, task.done = raw.worker or '', raw.done
  task.retries = raw.retries and number(raw.retries) or 0
  task.max_retries = raw.max_retries and number(raw.max_retries) or 0
  task.deliveries = raw.deliveries and number(raw.deliveries) or 0
  task.token, task.token_text = raw.token and number(raw.token) or 0, raw.token
  task.died = raw.died and number(raw.died) or 0
  task.started = raw.started and number(raw.started)
  task.cost, task.is_listed = raw.cost and number(raw.cost), raw.listed == '1' -- handed out by a list
  task.lead, task.organization_lead = raw.lead and number(raw.lead) or 0, raw.organization_lead and number(raw.organization_lead) or 0
  task.is_suspect = raw.suspect == '1' -- it was running when its process died
  task.is_companion = raw.companion == '1' -- it runs in one call with another task
end

-- Whether its last attempt was reported, so that it waits for the next one. Given back, it has no token.
local function waits_for_retry(raw)
  return raw.state ~= 'started' and raw.done and raw.token and raw.token ~= '0' and raw.done:match('^%d+') == raw.token
end

-- The task's record and its head, or nil when there is nothing that can be used (no state, no user, no known priority; or a record of
-- another type).
-- One HGETALL: a record has some eight fields, and reading all is cheaper than asking for sixteen by name. Most payloads are read with
-- their heads; of a larger one no more than this is read.
local LARGE = 1024
function read_task(id)
  local key = task_key(id)
  local flat, raw, text, payload_at = attempt('HGETALL', key), {}, nil, nil
  if not flat then return nil end
  for i = 1, #flat, 2 do raw[flat[i]] = flat[i + 1] end
  if not (raw.user and raw.created and raw.priority) then
    text = attempt('GETRANGE', payload_key(id), 0, LARGE - 1)
    raw, payload_at = heads.read(text)
    for i = 1, #flat, 2 do raw[flat[i]] = flat[i + 1] end
  end
  local priority = PRIORITIES[raw.priority]
  if not (raw.state and raw.user and priority) then return nil end
  local created = raw.created and number(raw.created) or now
  local task = {
    id = id, key = key, raw = raw, state = raw.state, user = raw.user, priority = priority, created = created,
    text = text, payload_at = payload_at, is_whole = text and #text < LARGE, -- of one with a head: its beginning, and whether that is all
    ready = raw.ready and number(raw.ready) or created, waited = raw.waited,
    sla = raw.sla and number(raw.sla),
    size = raw.size and number(raw.size), -- of one that counts against its user's limit on bytes
    -- A task that was given back, or whose process died, has started in time. One that waits for a retry must start again in time.
    expires = raw.expires and (not raw.started or waits_for_retry(raw)) and number(raw.expires) or nil,
    worker = '', retries = 0, max_retries = 0, deliveries = 0, token = 0, died = 0, is_listed = false, lead = 0, organization_lead = 0, is_suspect = false, is_companion = false,
  }
  if raw.token or raw.died or task.state ~= 'queued' then read_past(task, raw) end
  return task
end

end

-- The mirror of a task on another shard that tasks here wait for: what is known of it here.
local function read_mirror(id)
  local found = redis.call('HMGET', remote_key(id), 'state', 'shard')
  return found[1] and { id = id, state = found[1], raw = {}, shard = found[2] }
end

local watch
do

local WATCH_AGAIN = 60e6 -- us until it is checked again whether a task on another shard has ended
function watch(mirror)
  zadd(K.mirrors, now + WATCH_AGAIN, mirror.id)
  post_once('watch:' .. mirror.shard .. ':' .. mirror.id, now_text)
end

end

local function deadline_of(task) return task.ready + (task.sla or default_sla[task.priority]) end

-- From when a queued task is at risk to miss its SLA: the configured time before the deadline, at most half of the SLA.
local function risk_of(task)
  local start_within = task.sla or default_sla[task.priority]
  return task.ready + start_within - math.min(at_risk, start_within / 2)
end

local PROMOTED = { 3, 3, 4 } -- what a starving task of priority 1, 2, 3 becomes

-- The moment at which a queued task has waited too long for its priority, or nil. After a promotion the wait is counted again.
local function starving_at(task)
  local threshold = task.priority <= 3 and starves_after[task.priority] or 0
  if threshold == 0 then return nil end
  local promoted_at = task.raw.promoted_at
  return (promoted_at and math.max(task.ready, number(promoted_at)) or task.ready) + threshold
end

-- When a queued task must be looked at: at risk, overdue (one alert for each), starving, expired.
local function queued_look(task)
  local notified = task.raw.warn
  -- Tasks whose alerts were all sent are behind NEVER, the oldest (to the ms) first, so that the longest wait can be
  -- found.
  local moment = task.expires or NEVER + math.floor(math.max(0, task.ready - EPOCH) / 1000)
  if not notified then
    moment = math.min(moment, risk_of(task))
  elseif notified == 'risk' then
    moment = math.min(moment, deadline_of(task))
  end
  return math.min(moment, starving_at(task) or moment)
end

-- Where it stands in its user's normal queue: by priority, then by the moment it became ready.
local function place_of(task) return task.priority * BAND + math.max(0, task.ready - EPOCH) end

local function note_eldest(user, task)
  if user.ready - user[READY[6]] == 0 or not user.since or task.ready < user.since then set(user, 'since', task.ready) end
end

local order_returning
do

-- The id at this place of a user's critical list, if that one has come back as well and is elder: nil otherwise.
local function elder_at(task, index)
  local id = attempt('LINDEX', critical_key(task.user), index)
  local found = id and attempt('HMGET', task_key(id), 'token', 'ready')
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

-- Puts tasks that come back in the order in which they are to be written, the youngest first, and finds out behind which
-- each critical one belongs: their list has no order of its own, and some may have come back before. Reads only.
function order_returning(tasks)
  table.sort(tasks, function(a, b)
    if a.ready ~= b.ready then return a.ready > b.ready end
    return a.token > b.token
  end)
  for _, task in ipairs(tasks) do
    if task.priority == 6 then task.behind = elder_of(task) end
  end
end

end

local function queue_up(user, task, at_front)
  if user.sla and not task.sla then -- the user's own SLA; fixed now, as that of any task is when it becomes ready
    task.sla = user.sla
    redis.call('HSET', task_key(task.id), 'sla', exact(task.sla))
  end
  local moment = queued_look(task)
  zadd(K['state:queued'], moment, task.id)
  look_at(moment)
  if task.priority == 6 then
    if task.behind then
      attempt('LINSERT', critical_key(user.name), 'AFTER', task.behind, task.id)
    else
      attempt(at_front and 'LPUSH' or 'RPUSH', critical_key(user.name), task.id)
    end
  else
    zadd(normal_key(user.name), place_of(task), task.id)
    note_eldest(user, task)
  end
  add_ready(user, task.priority, 1)
end

local function to_queued(user, task, at_front, ...)
  redis.call('HSET', task.key, 'state', 'queued', 'ready', exact(task.ready), ...)
  queue_up(user, task, at_front)
end

local function to_scheduled(user, task, due, ...)
  redis.call('HSET', task.key, 'state', 'scheduled', 'due', exact(due), ...)
  schedule(user, task.id, due)
end

-- Users take turns in having the dependents of their ended tasks resolved, each task of a user one turn after the one before
-- (start-time fair queueing, as in lib/ring.lua). `resolve_turn` is the turn that was reached last, and of a user its next one.
local function next_turn_to_resolve(user)
  local turn = math.max(stat.resolve_turn, user.resolve_turn or 0)
  set(user, 'resolve_turn', turn + 1)
  return turn
end

local function to_ended(task, state, ttl, ...)
  redis.call('HSET', task.key, 'state', state, 'ended', now_text, ...)
  if task.size then
    redis.call('HDEL', task.key, 'size')
    add(task.owner, 'bytes', -task.size)
  end
  zadd(K['state:' .. state], now + ttl, task.id)
  if task.waited then -- its dependents are resolved next (lib/dependents.lua)
    zadd(K.resolving, task.owner and next_turn_to_resolve(task.owner) or stat.resolve_turn, task.id)
    look_at(now)
  end
end

-- A dead letter of one of the three types; `kind` is what the history calls it.
local function to_dead(user, task, failure, reason, trace, ...)
  if bounds.is_full(user) then reason, trace = bounds.shorten(task, reason), '' end
  to_ended(task, 'failed', failed_ttl, 'failure', failure, 'reason', reason, 'died', exact(task.died + 1), ...)
  remember(task.id, failure, task.worker, reason, trace, (failure ~= 'expired' or task.kind) and task)
  add(user, 'failed', 1)
  add(user, 'dead', 1)
  count('dead:' .. failure, 1)
  count('lying:' .. failure, 1)
  count('died', 1)
  tally('dead', 1)
end

-- For a task that ended without its worker: the worker's report of an outcome is then answered with the task's state.
local function expire(task)
  local reason = task.raw.started and 'not started again in time' or 'not started in time'
  to_dead(task.owner, task, 'expired', reason, '')
  alert('died', task, reason)
end

-- Leave the state of waiting that the task is in (not STARTED, see `end_lease`).
local function leave_waiting(user, task)
  if task.state == 'scheduled' then
    unschedule(user, task.id)
  elseif task.state == 'deferred' then
    zrem(K['state:deferred'], task.id)
    add(user, 'deferred', -1)
    for _, blocker in ipairs(task.blockers) do
      srem(waiting_key(blocker), task.id)
      srem(reacting_key(blocker), task.id)
      srem(first_key(blocker), task.id)
      srem(blocked_key(task.id), blocker)
    end
    count('edges', -#task.blockers)
  elseif task.state == 'queued' then
    zrem(K['state:queued'], task.id)
    if task.priority == 6 then
      attempt('LREM', critical_key(user.name), 1, task.id)
    else
      zrem(normal_key(user.name), task.id)
    end
    add_ready(user, task.priority, -1)
  end
end

local end_lease
do

local WAITED = { 'wait:1', 'wait:2', 'wait:3', 'wait:4', 'wait:5', 'wait:6' }

-- The lease is over, whatever comes next. `took` nil: count from the pop. Returns the sums of the user (`settle_charge`).
function end_lease(user, task, took, is_run)
  zrem(K['state:started'], task.id)
  srem(leases_key(task.worker), task.id)
  took = took or (task.is_companion and 0 or math.max(0, now - (task.started or now)))
  local waited = 0
  if is_run then
    waited = (task.started or now) - task.ready
    if waited < 0 then waited = 0 end
    histogram.observe('wait', waited, WAITED[task.priority])
    histogram.observe('run', took, 'run')
  end
  return settle_charge(user, task, took, waited, is_run)
end

end

-- Tasks of this name and user run alone for ten minutes, on all workers (`note_quarantined`): one did not end at its hard limit, so its
-- process was killed with all that ran next to it, or two ended processes in which they ran alone. `crashed_alone` has the moment until
-- which the first of these two counts. Callers touch both keys.
local quarantine = {}
do

local SECONDS = 600e6
local function member_of(task) return task.user .. '\0' .. (task.raw.name or '') end
local function lengthen(name, task)
  local key = P .. name
  for _, ended in ipairs(redis.call('ZRANGEBYSCORE', key, '-inf', now_text, 'LIMIT', 0, 100)) do zrem(key, ended) end
  zadd(key, now + SECONDS, member_of(task))
end

function quarantine.touch()
  touch(P .. 'quarantine')
  touch(P .. 'crashed_alone')
end

function quarantine.begin(task)
  lengthen('quarantine', task)
  set_stat('quarantine', now + SECONDS)
end

-- A process died in which only this task ran.
local crashed = {} -- in this call
each_call(function()
  if next(crashed) then crashed = {} end
end)
function quarantine.record_crash(task)
  local member = member_of(task)
  local before = crashed[member] or tonumber(redis.call('ZSCORE', P .. 'crashed_alone', member) or 0)
  crashed[member] = now + SECONDS
  if before > now then quarantine.begin(task) end
  lengthen('crashed_alone', task)
end

end

local return_task
do

-- A task that was handed out this often without an outcome may be the one that ends its processes. So it waits before
-- it is handed out again, and other tasks have the processes meanwhile. The first time may be bad luck, and costs
-- nothing. Tasks that died together come back one after the other (their tokens follow each other), so that the task
-- that caused it does not run with the others again.
local SUSPECT = 2
local FIRST_PAUSE, LONGEST_PAUSE = 0.5e6, 4e6
local function pause_of(task)
  return math.min(LONGEST_PAUSE, FIRST_PAUSE * 2 ^ (task.deliveries - SUSPECT)) * (1 + task.token % 16 / 16)
end

-- Back in the queue at its old place; after a pause when it was handed out often without an outcome (or after `delay`), and a
-- dead letter when that was too often.
--
-- Every task that was running when its process died is a suspect, and workers run a suspect alone. So the first crash never
-- makes a dead letter: another task may have been its cause. From then on each crash has one cause. A task's own limit of 1 is
-- different: then its code must not begin a second time, whatever ended the first time.
function return_task(user, task, kind, reason, trace, delay)
  if kind ~= 'released' or task.has_started then -- how often it was given back after it had begun
    local times = (tonumber(task.raw.returned) or 0) + 1
    redis.call('HSET', task.key, 'returned', exact(times))
    if times % 10 == 0 then alert('given_back', task, times) end
  end
  end_lease(user, task, kind == 'released' and 0 or nil, kind ~= 'released')
  count('returned:' .. kind, 1)
  local is_first_crash = kind == 'crashed' and not task.is_suspect
  if kind == 'crashed' and not is_first_crash then quarantine.record_crash(task) end
  local is_charged = kind ~= 'released' and not is_first_crash
  local most = tonumber(task.raw.max_deliveries) or max_deliveries
  local has_begun = kind ~= 'released' or task.has_started or (task.took or 0) > 0
  local is_once = task.raw.max_deliveries == '1' and has_begun
  if is_charged and task.deliveries >= most or is_once then
    remember(task.id, kind, task.worker, reason, trace, task)
    to_dead(user, task, 'poisoned', reason, '', 'token', 0)
    return 3
  end
  remember(task.id, kind, task.worker, reason, trace, task)
  if is_first_crash then redis.call('HSET', task.key, 'suspect', 1) end
  if is_charged and task.deliveries >= SUSPECT then
    -- `done`, as of a retry: the pause was counted from now, and not given (see `set_back`).
    to_scheduled(user, task, now + pause_of(task), 'token', 0, 'done', task.done or '0')
    return 4
  end
  local deliveries = kind == 'released' and math.max(0, task.deliveries - 1) or task.deliveries
  if delay then
    to_scheduled(user, task, now + delay, 'token', 0, 'deliveries', exact(deliveries), 'done', task.done or '0')
    return 4
  end
  to_queued(user, task, true, 'token', 0, 'deliveries', exact(deliveries))
  return 4
end

end

-- The same for one whose worker is gone.
local function return_unreported(task, kind, reason)
  if return_task(task.owner, task, kind, reason, '') == 3 then alert('died', task, reason) end
end

-- Use, before any write, the derived keys that ending a lease, or any other move of this task, may write.
local touch_lease
do

local touched_worker
each_call(function() touched_worker = nil end)
function touch_lease(task)
  if task.worker == touched_worker then return end
  touched_worker = task.worker
  touch(leases_key(touched_worker))
end

end
local function touch_moves(task)
  touch(history_key(task.id))
  touch(task.priority == 6 and critical_key(task.user) or normal_key(task.user))
  touch(scheduled_key(task.user))
  if task.state == 'started' then touch_lease(task) end
  if task.state == 'deferred' then
    task.blockers = attempt('SMEMBERS', blocked_key(task.id)) or {}
    for _, blocker in ipairs(task.blockers) do
      touch(waiting_key(blocker))
      touch(reacting_key(blocker))
      touch(first_key(blocker))
    end
  end
end
