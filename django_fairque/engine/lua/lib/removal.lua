-- End or delete tasks on request: cancel, discard and forget.
--
-- include numbers calls keys options counters clock slot writes history records users bounds task_record moves leases

local removal = {}

local CHUNK = calls.CHUNK

-- Cancel a task that waits or runs. A running task loses its lease, and its worker is sent the lease's token and the
-- task's id. The token is needed because the id may be used again: another task with this id may run in the same worker
-- before the worker learns of the cancellation.
function removal.cancel(task, reason)
  local was_started = task.state == 'started'
  if was_started then
    local worker = task.worker
    leases.close(task.owner, task, nil, true)
    redis.call('SADD', keys.revoked(worker), numbers.exact(task.token) .. ':' .. task.id)
    redis.call('PEXPIRE', keys.revoked(worker), 3600000)
  else
    moves.leave_waiting(task.owner, task)
  end
  history.add(task.id, 'canceled', task.worker, reason, '', was_started and task)
  moves.to_ended(task, 'canceled', options.result_ttl, 'token', 0)
  counters.count('canceled', 1)
end

-- Delete all data of ended tasks. The caller calls `commit`. Two kinds of tasks are not deleted yet: a dead letter for
-- which other tasks wait is discarded first (those tasks can't run any more), and a task whose dependents are being
-- resolved is tried again after a second.
function removal.forget(state, ids)
  if #ids == 0 then return end
  local gone, lost = {}, {}
  for _, id in ipairs(ids) do
    local found = calls.attempt('HMGET', keys.task(id), 'run', 'waited', 'failure', 'state', 'result_size')
    if not found or (found[4] or task_record.read(id) and 'queued' or state) ~= state then -- outdated: the task was queued again, or ended otherwise
      writes.zrem(K['state:' .. state], id)
    else
      local is_waited = found[2] and redis.call('EXISTS', keys.waiting(id), keys.watchers(id)) > 0
      if is_waited then slot.touch(keys.history(id)) end
      if found[1] then slot.touch(keys.run(found[1])) end
      local size = found[5] and numbers.read(found[5])
      local task = (size or state == 'failed') and task_record.read(id)
      local owner = task and users.load(task.user)
      if owner and size then bounds.touch_result(owner.name) end
      lost[#lost + 1] = { id = id, run = found[1], is_waited = is_waited, failure = found[3], owner = owner, size = size }
    end
  end
  slot.touch_all()
  for _, one in ipairs(lost) do
    local id = one.id
    if state == 'failed' then
      counters.count('lying:' .. (one.failure or 'failed'), -1)
      if one.owner then records.add(one.owner, 'dead', -1) end
    end
    if not one.is_waited then
      if one.owner and one.size then bounds.forget_result(one.owner, id, one.size) end
      gone[#gone + 1] = keys.task(id)
      gone[#gone + 1] = keys.payload(id)
      gone[#gone + 1] = keys.history(id)
      gone[#gone + 1] = P .. 'logs:' .. id
      writes.zrem(K['state:' .. state], id)
      if one.run then writes.srem(keys.run(one.run), id) end
    elseif state == 'failed' then
      history.add(id, 'discarded', '', 'kept long enough', '')
      moves.to_ended({ id = id, key = keys.task(id), waited = '1' }, 'canceled', options.result_ttl)
      writes.zrem(K['state:failed'], id)
      counters.count('discarded', 1)
    else
      writes.zadd(K['state:' .. state], clock.now + 1000000, id)
    end
  end
  for first = 1, #gone, CHUNK do
    redis.call('DEL', unpack(gone, first, math.min(first + CHUNK - 1, #gone)))
  end
end
