-- Ending a task from outside: cancel, discard, forget.

-- A task that waits or runs becomes CANCELED. A running one loses its lease; its worker is told to stop it.
local function cancel(t, reason)
  if t.state == 'started' then
    local worker = t.raw.worker
    end_lease(t.u, t, nil, true)
    redis.call('SADD', revoked_key(worker), t.id)
    redis.call('PEXPIRE', revoked_key(worker), 3600000)
  else
    leave_waiting(t.u, t)
  end
  remember(t.id, 'canceled', t.raw.worker, reason, '')
  to_ended(t, 'canceled', result_ttl, 'token', 0)
  count('canceled', 1)
end

-- Nothing of an ended task is left.
local function forget(state, ids)
  if #ids == 0 then return end
  local keys = {}
  for _, id in ipairs(ids) do
    keys[#keys + 1] = task_key(id)
    keys[#keys + 1] = payload_key(id)
    keys[#keys + 1] = history_key(id)
  end
  for first = 1, #keys, CHUNK do
    redis.call('DEL', unpack(keys, first, math.min(first + CHUNK - 1, #keys)))
  end
  for _, id in ipairs(ids) do zrem(K['state:' .. state], id) end
end
