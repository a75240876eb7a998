-- Whether a task kept its SLA, and the cause of a late start.
--
-- The first start of a task counts. A task that ended without a start has missed its SLA if its deadline had passed.
-- Bulk tasks have an SLA only if they or their user have one of their own. `cause` in a task's record is set when its
-- deadline passes, or at the latest when it starts; monitoring/reports/sla_report.py has the words for each cause.
--
-- include clock counters deadlines queues ring

local sla = {}

local NOBODY_CAME = 60e6 -- workers notice within seconds that a deadline has passed
local MUCH = 1.5

-- Return whether the user has clearly more waiting tasks than the average of the users with work.
local function has_much_waiting(user)
  local all = 0
  for class = 0, 7 do all = all + counters.shard['depth:' .. class] end
  return (user.ready + user['ready:7'] + user['ready:0']) * counters.shard.active_users > MUCH * all
end

-- Return the reason why a task can't start now, after its deadline.
function sla.cause(task)
  local user, shard, lane = task.owner, counters.shard, queues.lane_of(task.priority)
  local organization = user.ring_owner ~= shard and user.ring_owner
  if shard.paused > 0 then return 'queue_paused' end
  if user.paused then return 'user_paused' end
  if organization and organization.paused then return 'organization_paused' end
  if clock.now - deadlines.to_start(task) > NOBODY_CAME then return 'no_worker' end
  if user.held then return 'throttled' end
  if (task.raw.waits_at or '') ~= '' then return 'limit_full' end
  if not ring.has_place(user, lane) then return 'capped' end
  if organization and not ring.has_place(organization, lane) then return 'organization_capped' end
  return has_much_waiting(user) and 'behind_own' or 'behind_users'
end

-- Note on a task that is handed out what `outcome` needs after its record is forgotten (lib/runs.lua).
function sla.note_start(task)
  local raw = task.raw
  task.is_first_start, task.late_because = not (raw.again or raw.returned) and task.died == 0, raw.cause
end

-- Return 'kept', or the cause for which a task missed its SLA; nil if the task does not count (any more).
function sla.outcome(task)
  if task.priority == 0 and not task.sla then return nil end
  if task.raw then sla.note_start(task) end
  if not task.is_first_start then return nil end
  if task.late_because then return task.late_because end
  if task.state == 'started' then return 'kept' end
  return task.state == 'queued' and deadlines.to_start(task) < clock.now and sla.cause(task) or nil
end
