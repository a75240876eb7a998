-- The lanes: urgent, normal and bulk tasks across all users. A lane changes when a user is served, not how much worker
-- time the user gets: each start is charged to the user's tag, in every lane.
--
-- - Urgent tasks are served first while the `urgent_tag` of their user is at most `ring.AHEAD` beyond the virtual time.
--   So urgent tasks use up the share of their own user earlier.
-- - Bulk tasks are served when no other tasks can start.
-- - A lane that has queued tasks is owed its least share of the worker time, in `owed:normal` and `owed:bulk`. Such a
--   lane is served next if it is owed the expected cost of its first task, and has less than its least share of the
--   running tasks.
--
-- include options counters ring

local lanes = {}

-- Return whether the shard has queued tasks in lane urgent or bulk.
function lanes.are_used() return counters.shard['depth:7'] > 0 or counters.shard['depth:0'] > 0 end

local function least_share(lane) return lane == 'bulk' and options.least_bulk or options.least_normal end

local function has_normal_tasks()
  local shard = counters.shard
  for priority = 1, 6 do
    if shard['depth:' .. priority] > 0 then return true end
  end
  return false
end

-- Return the largest amount that a lane may be owed or may owe. With expensive tasks a bound of `AHEAD` alone would
-- never let the lane start one.
local function most_owed(cost) return math.max(ring.AHEAD, 2 * cost) end

local function change_owed(lane, amount, most)
  local field = lane == 'bulk' and 'owed:bulk' or 'owed:normal'
  local before = counters.shard[field]
  local after = math.max(-most, math.min(most, before + amount))
  if after ~= before then counters.set(field, after) end
end

-- Charge the cost of a task to its lane. A negative cost corrects a charge that was too high. Invariants: a lane
-- without queued tasks is not owed more, and nothing changes while only lane normal has tasks. If costs are counted in
-- time, the cost of a lane's first task limits the amount that the lane is owed (`lanes.is_due`).
local function charge(lane, cost)
  local most = most_owed(math.abs(cost))
  local most_of_others = options.fair_by_tasks and most or math.huge
  if lane ~= 'urgent' then change_owed(lane, -(1 - least_share(lane)) * cost, most) end
  if lane ~= 'bulk' and counters.shard['depth:0'] > 0 then change_owed('bulk', options.least_bulk * cost, most_of_others) end
  if lane ~= 'normal' and has_normal_tasks() then change_owed('normal', options.least_normal * cost, most_of_others) end
end

-- Count tasks of a lane that start, or (if `tasks` is negative) have ended. When tasks end, `cost` is the actual cost
-- minus the expected cost. Called for tasks of lanes urgent and bulk, and for tasks of lane normal while other lanes
-- have tasks. Invariants: `running:urgent` and `running:bulk` are the numbers of running tasks of these lanes;
-- `started:urgent` and `started:bulk` are the numbers of all tasks that were started.
function lanes.account(lane, tasks, cost)
  if lane ~= 'normal' then
    counters.count('running:' .. lane, tasks)
    if tasks > 0 then counters.count('started:' .. lane, tasks) end
  end
  if cost ~= 0 then charge(lane, cost) end
end

-- Return whether a lane is owed a task and has less than its least share of the running tasks. The cost of its first
-- task is not read yet, so the lane may turn out to be owed too little.
function lanes.may_be_due(lane)
  local shard = counters.shard
  if shard['owed:' .. lane] < (options.fair_by_tasks and ring.TASK_COST or ring.LEAST_COST) then return false end
  local running = lane == 'bulk' and shard['running:bulk'] or shard.running - shard['running:bulk'] - shard['running:urgent']
  return running < least_share(lane) * (shard.running + 1)
end

-- Return whether a lane is served before the lanes above it, because it is owed its least share. `one` is the user or
-- organization that is next in this lane.
function lanes.is_due(lane, one)
  if not lanes.may_be_due(lane) then return false end
  local cost, owed = ring.expected_cost(one), counters.shard['owed:' .. lane]
  change_owed(lane, 0, most_owed(cost))
  return owed >= cost
end

-- Return whether the urgent tag of this user or organization is low enough for its urgent tasks to go first.
function lanes.may_lead(one) return (one.urgent_tag or 0) <= one.ring_owner.vtime + ring.AHEAD end

