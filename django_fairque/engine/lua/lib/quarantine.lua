-- Quarantine: tasks with the same name and user run alone for ten minutes, on all workers (`note_quarantined` in
-- lib/fetch.lua). A quarantine begins when such a task did not end at its hard limit, so that its process was killed
-- with all tasks in it, or when two such tasks ran alone in their processes and the processes died. `crashed_alone` has
-- the moment until which the first of these two deaths counts. Callers touch both keys.
--
-- include counters clock slot writes

local quarantine = {}

local SECONDS = 600e6
local function member_of(task) return task.user .. '\0' .. (task.raw.name or '') end
local function lengthen(name, task)
  local key = P .. name
  for _, ended in ipairs(redis.call('ZRANGEBYSCORE', key, '-inf', clock.now_text, 'LIMIT', 0, 100)) do writes.zrem(key, ended) end
  writes.zadd(key, clock.now + SECONDS, member_of(task))
end

function quarantine.touch()
  slot.touch(P .. 'quarantine')
  slot.touch(P .. 'crashed_alone')
end

function quarantine.begin(task)
  lengthen('quarantine', task)
  counters.set('quarantine', clock.now + SECONDS)
end

-- Record that a process died in which only this task ran.
local crashed = {} -- by name and user: the deaths recorded in this call
each_call(function()
  if next(crashed) then crashed = {} end
end)
function quarantine.record_crash(task)
  local member = member_of(task)
  local before = crashed[member] or tonumber(redis.call('ZSCORE', P .. 'crashed_alone', member) or 0)
  crashed[member] = clock.now + SECONDS
  if before > clock.now then quarantine.begin(task) end
  lengthen('crashed_alone', task)
end
