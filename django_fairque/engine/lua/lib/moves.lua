-- Move tasks between states. A move reads nothing: the caller has read the task (`task_record.read`) and its user
-- before the first write. Used by all commands that change tasks.
--
-- include numbers calls keys options counters clock slot statistics writes alerts history records queues bounds deadlines limits edges user_periods

local moves = {}

function moves.enter_queue(user, task, at_front)
  if user.sla and not task.sla then -- the user's own SLA; it is fixed when the task becomes ready, as any SLA
    task.sla = user.sla
    redis.call('HSET', keys.task(task.id), 'sla', numbers.exact(task.sla))
  end
  local moment = deadlines.next_check(task)
  writes.zadd(K['state:queued'], moment, task.id)
  counters.note_due(moment)
  local enter = task.limits and limits.enter or queues.enter
  enter(user, task, at_front)
end

function moves.to_queued(user, task, at_front, ...)
  redis.call('HSET', task.key, 'state', 'queued', 'ready', numbers.exact(task.ready), ...)
  moves.enter_queue(user, task, at_front)
end

function moves.to_scheduled(user, task, due, ...)
  redis.call('HSET', task.key, 'state', 'scheduled', 'due', numbers.exact(due), ...)
  queues.schedule(user, task.id, due)
end

-- Return the number of the turn in which the dependents of a user's ended task are resolved. Users take turns: each
-- ended task of a user gets the number after that of the user's previous ended task (start-time fair queueing, as in
-- lib/ring.lua). The shard's `resolve_turn` is the latest turn that has begun; a user's `resolve_turn` is its next
-- turn.
function moves.next_turn_to_resolve(user)
  local turn = math.max(counters.shard.resolve_turn, user.resolve_turn or 0)
  records.set(user, 'resolve_turn', turn + 1)
  return turn
end

function moves.to_ended(task, state, ttl, ...)
  calls.attempt('HSET', task.key, 'state', state, 'ended', clock.now_text, ...)
  if task.size then
    redis.call('HDEL', task.key, 'size')
    records.add(task.owner, 'bytes', -task.size)
  end
  writes.zadd(K['state:' .. state], clock.now + ttl, task.id)
  if task.waited then -- its dependents are resolved next (lib/dependents.lua)
    writes.zadd(K.resolving, task.owner and moves.next_turn_to_resolve(task.owner) or counters.shard.resolve_turn, task.id)
    counters.note_due(clock.now)
  end
end

-- Make a task a dead letter of the type `failure`: failed, expired or poisoned.
function moves.to_dead(user, task, failure, reason, trace, ...)
  if bounds.is_full(user) then reason, trace = bounds.shorten(task, reason), '' end
  moves.to_ended(task, 'failed', options.failed_ttl, 'failure', failure, 'reason', reason, 'died', numbers.exact(task.died + 1), ...)
  history.add(task.id, failure, task.worker, reason, trace, (failure ~= 'expired' or task.kind) and task)
  records.add(user, 'failed', 1)
  records.add(user, 'dead', 1)
  user_periods.count(user, 'dead')
  counters.count('dead:' .. failure, 1)
  counters.count('lying:' .. failure, 1)
  counters.count('died', 1)
  statistics.tally('dead', 1)
end

-- Make an expired task a dead letter. No worker reports this end, so an alert is added.
function moves.expire(task)
  local reason = task.raw.started and 'not started again in time' or 'not started in time'
  moves.to_dead(task.owner, task, 'expired', reason, '')
  alerts.add('died', task, reason)
end

-- Take a task out of its waiting state. STARTED is no waiting state (see `leases.close`).
function moves.leave_waiting(user, task)
  if task.state == 'scheduled' then
    queues.unschedule(user, task.id)
  elseif task.state == 'deferred' then
    writes.zrem(K['state:deferred'], task.id)
    records.add(user, 'deferred', -1)
    for _, blocker in ipairs(task.blockers) do
      edges.remove(blocker, task.id)
    end
    counters.count('edges', -#task.blockers)
  elseif task.state == 'queued' then
    writes.zrem(K['state:queued'], task.id)
    if task.limits and limits.leave(user, task) then return end
    if task.priority == 6 then
      calls.attempt('LREM', keys.critical(user.name), 1, task.id)
    else
      writes.zrem(keys.normal(user.name), task.id)
    end
    queues.add_ready(user, task.priority, -1)
  end
end

-- Touch, before any write, the keys that ending a lease or another move of this task may write.

local touched_worker
each_call(function() touched_worker = nil end)
function moves.touch_lease(task)
  if task.worker == touched_worker then return end
  touched_worker = task.worker
  slot.touch(keys.leases(touched_worker))
end

function moves.touch(task)
  slot.touch(keys.history(task.id))
  slot.touch(task.priority == 6 and keys.critical(task.user) or keys.normal(task.user))
  slot.touch(keys.scheduled(task.user))
  if task.owner then user_periods.touch(task.owner) end
  if task.state == 'started' then moves.touch_lease(task) end
  if task.limits then limits.touch(task) end
  if task.state == 'deferred' then
    task.blockers = calls.attempt('SMEMBERS', keys.blocked(task.id)) or {}
    for _, blocker in ipairs(task.blockers) do
      edges.touch(blocker)
    end
  end
end
