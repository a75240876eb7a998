-- Ending a task on request: cancel, discard and forget.

-- A task that waits or runs becomes CANCELED. A running one loses its lease, and its worker gets its id: the id is free
-- again, and the next task of that id may run under the same worker before that hears of it.
local function cancel(task, reason)
  local was_started = task.state == 'started'
  if was_started then
    local worker = task.worker
    end_lease(task.owner, task, nil, true)
    redis.call('SADD', revoked_key(worker), exact(task.token) .. ':' .. task.id)
    redis.call('PEXPIRE', revoked_key(worker), 3600000)
  else
    leave_waiting(task.owner, task)
  end
  remember(task.id, 'canceled', task.worker, reason, '', was_started and task)
  to_ended(task, 'canceled', result_ttl, 'token', 0)
  count('canceled', 1)
end

-- Remove all data of ended tasks. The caller calls `commit`. Two kinds are not forgotten yet: a dead letter that tasks wait for is given up first
-- (they can't run any more), and one whose dependents are being resolved is tried again in a second.
local function forget(state, ids)
  if #ids == 0 then return end
  local keys, lost = {}, {}
  for _, id in ipairs(ids) do
    local found = attempt('HMGET', task_key(id), 'run', 'waited', 'failure', 'state', 'result_size')
    if not found or (found[4] or read_task(id) and 'queued' or state) ~= state then -- left over: the task lives again, or its end is another one by now
      zrem(K['state:' .. state], id)
    else
      local is_waited = found[2] and redis.call('EXISTS', waiting_key(id), watchers_key(id)) > 0
      if is_waited then touch(history_key(id)) end
      if found[1] then touch(run_key(found[1])) end
      local size = found[5] and number(found[5])
      local task = (size or state == 'failed') and read_task(id)
      local owner = task and load_user(task.user)
      if owner and size then bounds.touch_result(owner.name) end
      lost[#lost + 1] = { id = id, run = found[1], is_waited = is_waited, failure = found[3], owner = owner, size = size }
    end
  end
  touch_all()
  for _, one in ipairs(lost) do
    local id = one.id
    if state == 'failed' then
      count('lying:' .. (one.failure or 'failed'), -1)
      if one.owner then add(one.owner, 'dead', -1) end
    end
    if not one.is_waited then
      if one.owner and one.size then bounds.forget_result(one.owner, id, one.size) end
      keys[#keys + 1] = task_key(id)
      keys[#keys + 1] = payload_key(id)
      keys[#keys + 1] = history_key(id)
      keys[#keys + 1] = P .. 'logs:' .. id
      zrem(K['state:' .. state], id)
      if one.run then srem(run_key(one.run), id) end
    elseif state == 'failed' then
      remember(id, 'discarded', '', 'kept long enough', '')
      to_ended({ id = id, key = task_key(id), waited = '1' }, 'canceled', result_ttl)
      zrem(K['state:failed'], id)
      count('discarded', 1)
    else
      zadd(K['state:' .. state], now + 1000000, id)
    end
  end
  for first = 1, #keys, CHUNK do
    redis.call('DEL', unpack(keys, first, math.min(first + CHUNK - 1, #keys)))
  end
end
