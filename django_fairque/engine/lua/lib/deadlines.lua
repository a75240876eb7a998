-- The moments of a queued task: when it should start (its SLA), when this is at risk, and when the task starves.
--
-- include numbers options clock

local deadlines = {}

function deadlines.to_start(task) return task.ready + (task.sla or options.default_sla[task.priority]) end

-- Return the moment from which a queued task is at risk of missing its SLA: `at_risk` before the deadline, but at most
-- half of the SLA before it.
function deadlines.at_risk(task)
  local start_within = task.sla or options.default_sla[task.priority]
  return task.ready + start_within - math.min(options.at_risk, start_within / 2)
end

-- Return the moment at which a queued task has waited too long for its priority, or nil if there is none. After a
-- promotion the wait counts from the promotion.
function deadlines.starving(task)
  local threshold = task.priority <= 3 and options.starves_after[task.priority] or 0
  if threshold == 0 or task.limits then return nil end -- a task with limits by key is never promoted
  local promoted_at = task.raw.promoted_at
  return (promoted_at and math.max(task.ready, numbers.read(promoted_at)) or task.ready) + threshold
end

-- Return the next moment at which a queued task must be checked: it is at risk, overdue, starving or expired. Each
-- warning is given once.
function deadlines.next_check(task)
  local notified = task.raw.warn
  -- If all warnings of a task were given and it does not expire, its moment is after NEVER. Such tasks are ordered by
  -- their age (in ms), so that the longest wait can be found.
  local moment = task.expires or clock.NEVER + math.floor(math.max(0, task.ready - clock.EPOCH) / 1000)
  if not notified then
    moment = math.min(moment, deadlines.at_risk(task))
  elseif notified == 'risk' then
    moment = math.min(moment, deadlines.to_start(task))
  end
  return math.min(moment, deadlines.starving(task) or moment)
end
