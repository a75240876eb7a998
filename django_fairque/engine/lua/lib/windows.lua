-- The tasks at the head of a user's queues that a call has read. Tasks that the call takes leave the queues when it
-- writes.
--
-- include calls keys clock writes queues task_record

local windows = {}

-- The lowest score of each priority (`priority * BAND`), with bulk tasks (0) and urgent tasks (7). The last score only
-- ends the range of urgent tasks.
local LOWEST = { [0] = '0', '1e15', '2e15', '3e15', '4e15', '5e15', '6e15', '7e15', '8e15' }

-- Note that a user's queue can't be read. The user leaves the ring until the checker adds it again.
local function damaged(user)
  user.is_unreadable = true
  return {}
end

function windows.get(user, priority)
  local window = user.windows[priority]
  if not window then
    window = { at = 1, ids = { nil }, ready = { nil }, step = 2, out = {}, read = { nil } } -- `out`: tasks that were taken before earlier tasks of the queue
    user.windows[priority] = window
  end
  return window
end

-- Return the id at this index of the user's tasks of this priority, as they were when the call began.
function windows.id_at(user, priority, window, place)
  if place > #window.ids then
    local first = #window.ids
    if priority == 6 then
      for _, id in ipairs(calls.attempt('LRANGE', keys.critical(user.name), first, first + window.step - 1) or damaged(user)) do
        window.ids[#window.ids + 1] = id
      end
    else
      local found = calls.attempt('ZRANGEBYSCORE', keys.normal(user.name), LOWEST[priority], '(' .. LOWEST[priority + 1],
        'WITHSCORES', 'LIMIT', first, window.step) or damaged(user)
      for i = 1, #found, 2 do
        window.ids[#window.ids + 1] = found[i]
        window.ready[#window.ids] = tonumber(found[i + 1]) - priority * queues.BAND + clock.EPOCH
      end
    end
    window.step = math.min(window.step * 4, 256)
  end
  return window.ids[place]
end

-- Return the id and ready time of the task of this priority that has waited longest and is not taken yet.
function windows.next(user, priority)
  local window = windows.get(user, priority)
  while window.out[window.at] do window.at = window.at + 1 end
  return windows.id_at(user, priority, window, window.at), window.ready[window.at]
end

function windows.read_at(window, place)
  local task = window.read[place]
  if task == nil then task = task_record.read(window.ids[place]) or false end
  window.read[place] = task
  return task
end

function windows.remove_taken(user)
  for priority, window in next, user.windows do
    user.windows[priority] = nil
    local taken = window.at - 1
    if priority == 6 and taken > 0 then
      calls.attempt('LPOP', keys.critical(user.name), taken)
    else
      local key = keys.normal(user.name)
      for i = 1, taken do writes.zrem(key, window.ids[i]) end
      for i in pairs(window.out) do
        if i > taken then writes.zrem(key, window.ids[i]) end
      end
    end
  end
end
