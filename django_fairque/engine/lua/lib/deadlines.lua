-- The moments of a queued task: the deadline of its SLA, when it is at risk, and when it starves.
--
-- include numbers options clock

local deadlines = {}

function deadlines.to_start(task) return task.ready + (task.sla or options.default_sla[task.priority]) end

-- From when a queued task is at risk to miss its SLA: the configured time before the deadline, at most half of the SLA.
function deadlines.at_risk(task)
  local start_within = task.sla or options.default_sla[task.priority]
  return task.ready + start_within - math.min(options.at_risk, start_within / 2)
end

-- The moment at which a queued task has waited too long for its priority, or nil. After a promotion the wait is counted again.
function deadlines.starving(task)
  local threshold = task.priority <= 3 and options.starves_after[task.priority] or 0
  if threshold == 0 or task.limits then return nil end -- its limits decide
  local promoted_at = task.raw.promoted_at
  return (promoted_at and math.max(task.ready, numbers.read(promoted_at)) or task.ready) + threshold
end

-- When a queued task must be looked at: at risk, overdue (one alert for each), starving, expired.
function deadlines.next_check(task)
  local notified = task.raw.warn
  -- Tasks whose alerts were all sent are behind NEVER, the oldest (to the ms) first, so that the longest wait can be
  -- found.
  local moment = task.expires or clock.NEVER + math.floor(math.max(0, task.ready - clock.EPOCH) / 1000)
  if not notified then
    moment = math.min(moment, deadlines.at_risk(task))
  elseif notified == 'risk' then
    moment = math.min(moment, deadlines.to_start(task))
  end
  return math.min(moment, deadlines.starving(task) or moment)
end
