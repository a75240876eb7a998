-- End leases: with an outcome, or because the task is given back.
--
-- include numbers keys options counters clock statistics writes alerts history queues charges moves quarantine runs user_periods task_names releases

local leases = {}

local WAITED = { [0] = 'wait:0', 'wait:1', 'wait:2', 'wait:3', 'wait:4', 'wait:5', 'wait:6', 'wait:7' }
local SINCE_FIRST = { urgent = 'wait_urgent', normal = 'wait', bulk = 'wait_bulk' } -- by lane: the histogram of all waits since the first task

-- Close a lease. The caller decides the next state of the task. If `took` is nil, the run time counts from the pop.
-- Returns the sums of the user (`charges.settle`).
function leases.close(user, task, took, is_run)
  runs.forget(task.key)
  writes.zrem(K['state:started'], task.id)
  writes.srem(keys.leases(task.worker), task.id)
  took = took or (task.is_companion and 0 or math.max(0, clock.now - (task.started or clock.now)))
  local waited = 0
  if is_run then
    waited = (task.started or clock.now) - task.ready
    if waited < 0 then waited = 0 end
    statistics.observe(SINCE_FIRST[queues.lane_of(task.priority)], waited, WAITED[task.priority])
    task.run_bucket = statistics.observe('run', took, 'run')
  end
  return charges.settle(user, task, took, waited, is_run)
end

-- A task that was handed out several times without an outcome may kill the processes that run it. So its next start is
-- delayed, and the processes run other tasks meanwhile. After the first time there is no delay, because it may be an
-- accident. Tasks that died together return one after the other (the delay depends on the token), so that the task that
-- caused it does not run with the others again.
local SUSPECT = 2
local FIRST_PAUSE, LONGEST_PAUSE = 0.5e6, 4e6
local function pause_of(task)
  return math.min(LONGEST_PAUSE, FIRST_PAUSE * 2 ^ (task.deliveries - SUSPECT)) * (1 + task.token % 16 / 16)
end

-- Give a task back to its old position in the queue. The task returns after `delay`, or after a pause if it was handed
-- out often without an outcome. If that happened too often, it becomes a dead letter.
--
-- Every task that was running when its process died is a suspect, and workers run a suspect alone. So a first crash
-- never makes a task a dead letter, because another task may have caused the crash. A later crash can only have been
-- caused by the task that ran alone. A task whose own limit is 1 delivery is different: its code must not begin a
-- second time, whatever ended the first run.
function leases.give_back(user, task, kind, reason, trace, delay)
  if kind ~= 'released' or task.has_started then -- the number of times that the task was given back after it had begun
    local times = (tonumber(task.raw.returned) or 0) + 1
    redis.call('HSET', task.key, 'returned', numbers.exact(times))
    if times % 10 == 0 then alerts.add('given_back', task, times) end
  end
  leases.close(user, task, kind == 'released' and 0 or nil, kind ~= 'released')
  counters.count('returned:' .. kind, 1)
  local is_first_crash = kind == 'crashed' and not task.is_suspect
  if kind == 'crashed' and not is_first_crash then quarantine.record_crash(task) end
  local is_charged = kind ~= 'released' and not is_first_crash
  local most = tonumber(task.raw.max_deliveries) or options.max_deliveries
  local has_begun = kind ~= 'released' or task.has_started or (task.took or 0) > 0
  local is_once = task.raw.max_deliveries == '1' and has_begun
  if is_charged and task.deliveries >= most or is_once then
    history.add(task.id, kind, task.worker, reason, trace, task)
    moves.to_dead(user, task, 'poisoned', reason, '', 'token', 0)
    return 3
  end
  history.add(task.id, kind, task.worker, reason, trace, task)
  if is_first_crash then redis.call('HSET', task.key, 'suspect', 1) end
  if is_charged and task.deliveries >= SUSPECT then
    -- `done` marks the due time as computed from the engine's time, as for a retry, and not given by a caller (see
    -- `set_back` in lib/clock.lua).
    moves.to_scheduled(user, task, clock.now + pause_of(task), 'token', 0, 'done', task.done or '0')
    return 4
  end
  local deliveries = kind == 'released' and math.max(0, task.deliveries - 1) or task.deliveries
  if delay then
    moves.to_scheduled(user, task, clock.now + delay, 'token', 0, 'deliveries', numbers.exact(deliveries), 'done', task.done or '0')
    return 4
  end
  moves.to_queued(user, task, true, 'token', 0, 'deliveries', numbers.exact(deliveries))
  return 4
end

-- Count an attempt whose lease was closed. `result` is finished, failed, or nil for neither, such as a Retry.
function leases.note_attempt(task, result, release)
  user_periods.note_attempt(task, result)
  task_names.note(task, result == 'failed', release)
end

-- Give back a task whose worker no longer exists and so will not report the attempt.
function leases.give_back_unreported(task, kind, reason)
  if leases.give_back(task.owner, task, kind, reason, '') == 3 then alerts.add('died', task, reason) end
  if kind ~= 'released' then
    leases.note_attempt(task, 'failed', releases.of_worker(task.worker))
  elseif task.has_started then
    task_names.note_sla(task)
  end
end
