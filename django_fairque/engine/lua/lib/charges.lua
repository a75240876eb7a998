-- Charge a user and its organization for tasks: the expected cost when a task is handed out, the actual cost when it
-- has ended.
--
-- include options counters clock records ring recent_usage rate queues lanes limits guarantees

local charges = {}

local add = records.add -- a local alias, which Lua finds faster: this function is called often

-- Charge a task that is handed out. `place` is the user's position in its ring, `organization_place` is the position of
-- its organization in the shard's ring. Both are nil if the task was handed out to a worker that serves a list of
-- users. In an urgent turn of an organization, the member's task may be of another lane. Returns the cost, and its
-- parts of the lead in the shard's ring and in the organization's ring. Invariant: the user and its organization are
-- charged the same cost. With `fair_by` tasks, a batch counts as one task. `ring_lane` is the lane whose tags are
-- charged, if that is not the task's lane.
function charges.add(user, place, organization_place, is_companion, lane, organization_lane, ring_lane)
  local cost = options.fair_by_tasks and is_companion and 0 or ring.expected_cost(user)
  rate.forget_step(user)
  local part, organization_part = ring.advance(user, cost, place, is_companion, ring_lane or lane), 0
  if user.group then organization_part, part = part, ring.advance(user.ring_owner, cost, organization_place, is_companion, ring_lane or organization_lane) end
  counters.set('running', counters.shard.running + 1)
  if lane ~= 'normal' or lanes.are_used() then lanes.account(lane, 1, cost) end
  guarantees.charge(user.ring_owner, cost)
  if user.gap then -- a token bucket stored as one number, the "theoretical arrival time" of the GCRA algorithm
    records.set(user, 'tat', math.max(user.tat or 0, clock.now) + user.gap)
    rate.hold_if_out_of_tokens(user)
  end
  return cost, part, organization_part
end

-- Charge further tasks in the turn of a user that was charged for its first task. Invariant: the virtual time stays,
-- because no other user waits for its turn meanwhile.
function charges.add_tasks(user, tasks, cost)
  for _, one in ipairs({ user, user.group and user.ring_owner }) do
    ring.account(one, tasks, tasks * cost, tasks * (clock.now - clock.EPOCH), 0, 0)
    add(one, 'started', tasks)
  end
  counters.set('running', counters.shard.running + tasks)
  if lanes.are_used() then lanes.account('normal', tasks, tasks * cost) end
  guarantees.charge(user.ring_owner, tasks * cost)
end

-- Replace the expected cost of a task that has ended or was given back by the actual cost. Invariant: a task that was
-- given back costs nothing and uses no rate token. A call adds up the costs of a user's ended tasks, and separately
-- those of the tasks that were given back. The sums are written when the user's record is saved.
function charges.settle(user, task, took, waited, is_run)
  local which = is_run and 'ended' or 'given_back'
  local sums = user[which]
  if not sums then
    sums = {
      tasks = 0, cost = 0, start = 0, used = 0, companions = 0, listed = 0, urgent = 0, lead = 0, organization_lead = 0, busy = 0, waited = 0,
      finished = 0,
    }
    user[which], user.changed.run = sums, true
  end
  local cost, used, fair_by_tasks = task.cost or 0, 0, options.fair_by_tasks
  if is_run then
    used = fair_by_tasks and cost or took > ring.LEAST_COST and took or ring.LEAST_COST
    if not fair_by_tasks then
      user.mean = user.mean and user.mean * 0.8 + used * 0.2 or used
      user.changed.mean = true
      local mean = counters.shard.mean
      counters.set('mean', mean > 0 and mean * 0.95 + used * 0.05 or used)
    end
  else
    rate.give_token_back(user, task.started or clock.now)
  end
  if task.limits then limits.finish(user, task, used - cost, is_run) end
  local lane = queues.lane_of(task.priority)
  counters.set('running', counters.shard.running - 1)
  if lane ~= 'normal' or lanes.are_used() then lanes.account(lane, -1, used - cost) end
  if lane == 'urgent' then sums.urgent = sums.urgent + used - cost end
  sums.tasks, sums.cost, sums.used = sums.tasks + 1, sums.cost + cost, sums.used + used
  sums.busy, sums.waited = sums.busy + took, sums.waited + waited
  if task.is_companion then
    sums.companions = sums.companions + 1
  else
    sums.start = sums.start + clock.EPOCH - (task.started or clock.now)
  end
  if task.is_listed then
    sums.listed = sums.listed + (fair_by_tasks and used - cost or used)
  elseif used ~= cost and cost > 0 then
    sums.lead = sums.lead + task.lead * (used - cost) / cost
    sums.organization_lead = sums.organization_lead + task.organization_lead * (used - cost) / cost
  end
  return sums
end

local function apply_sums(user, which)
  local sums, is_given_back = user[which], which == 'given_back'
  if not sums then return end
  user[which] = nil
  ring.correct(user, sums, user.group and sums.organization_lead or sums.lead, is_given_back)
  if user.group then ring.correct(user.ring_owner, sums, sums.lead, is_given_back) end
  guarantees.charge(user.ring_owner, sums.used - sums.cost)
  if sums.busy ~= 0 then
    add(user, 'busy', sums.busy)
    recent_usage.note_work(user, sums.busy)
  end
  if sums.waited ~= 0 then add(user, 'waited', sums.waited) end
  if sums.finished ~= 0 then add(user, 'finished', sums.finished) end
end

function charges.apply(user)
  apply_sums(user, 'ended')
  apply_sums(user, 'given_back')
end
