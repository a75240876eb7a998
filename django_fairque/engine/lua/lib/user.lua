-- A user's record and its place in a ring: its group's, or the shard's.
--
-- Every field of the record but the name of the group is a number, so hostile names never meet a parser.

local READY = { 'ready:1', 'ready:2', 'ready:3', 'ready:4', 'ready:5', 'ready:6' }

local users, user_order
each_call(function() users, user_order = {}, {} end)

local function is_idle(u)
  return u.ready == 0 and u.sched == 0 and u.deferred == 0 and u.run == 0
    and not (u.paused or u.cap or u.gap or u.backlog or u.max_bytes or u.sla or u.group or u.weight ~= 1)
end

-- Whose ring it stands in.
local function floor_of(group)
  if not group then return stat end
  if not groups[group] then touch(members_key(group)) end
  return load_group(group)
end

local function load_user(name)
  local u = users[name]
  if u then return u end
  u = { -- written out at its full size: a table that grows field by field is moved six times
    name = name, entry = name, key = user_key(name), lanes = {}, weight = 1, tag = -math.huge, -- never served: before everyone
    ['ready:1'] = 0, ['ready:2'] = 0, ['ready:3'] = 0, ['ready:4'] = 0, ['ready:5'] = 0, ['ready:6'] = 0, ready = 0,
    sched = 0, deferred = 0, bytes = 0, started = 0, finished = 0, failed = 0, busy = 0, waited = 0,
    run = 0, expected = 0, begun = 0, over = 0, beside = 0, companions = 0, counted = 0, early = 0,
    floor = false, was_floor = false,
    is_new = true, was_served = false, was_idle = false, was_tag = 0, changed = false,
  }
  local flat = attempt('HGETALL', u.key)
  u.is_damaged = not flat -- never served, and not written
  flat = flat or {}
  for i = 1, #flat, 2 do
    if flat[i] == 'group' then u.group = flat[i + 1] else u[flat[i]] = number(flat[i + 1]) or u[flat[i]] end
  end
  if u.weight <= 0 then u.weight = 1 end
  u.is_new = #flat == 0
  u.floor = floor_of(u.group)
  u.ready = u['ready:1'] + u['ready:2'] + u['ready:3'] + u['ready:4'] + u['ready:5'] + u['ready:6']
  note_before(u)
  u.was_idle = is_idle(u)
  users[name] = u
  user_order[#user_order + 1] = u
  return u
end

-- A scheduled task stands in the registry and among its user's, and its user in `due`. That says only by when the user's first
-- one is due at the earliest: users take turns there (lib/due_work.lua), and a task that leaves changes nothing.
local function schedule(u, id, due)
  zadd(K['state:scheduled'], due, id)
  zadd(scheduled_key(u.name), due, id)
  u.first_due = math.min(u.first_due or due, due)
  look_at(due)
  add(u, 'sched', 1)
end

local function unschedule(u, id)
  zrem(K['state:scheduled'], id)
  zrem(scheduled_key(u.name), id)
  add(u, 'sched', -1)
end

local add_ready
do

local DEPTH = { 'depth:1', 'depth:2', 'depth:3', 'depth:4', 'depth:5', 'depth:6' }
function add_ready(u, priority, amount)
  add(u, READY[priority], amount)
  u.ready = u.ready + amount
  count('depth:' .. priority, amount)
end

end

local rate = {} -- in one table: a script has room for 200 names
do

-- Who is served, or let go, has a token: a rate that says otherwise is of a clock that was ahead and has been set right.
function rate.forget_step(u)
  if u.gap and u.tat then u.tat = math.min(u.tat, now + u.gap * ((u.burst or 1) - 1)) end
end

function rate.hold_if_out_of_tokens(u)
  if not u.gap then return end
  local free = (u.tat or 0) - u.gap * ((u.burst or 1) - 1)
  if free > now then
    set(u, 'held', free)
    zadd(K.throttled, free, u.name)
    look_at(free)
  end
end

local function hold_again(u)
  if u.held then
    set(u, 'held', nil)
    rate.hold_if_out_of_tokens(u)
    if not u.held then zrem(K.throttled, u.name) end
  else
    rate.hold_if_out_of_tokens(u)
  end
end

-- A task that was given back at once has used no token. One that was handed out before there was a rate had used none anyway.
function rate.give_token_back(u, handed_out)
  if not (u.gap and u.tat) or handed_out < (u.rated or 0) then return end
  set(u, 'tat', u.tat - u.gap)
  hold_again(u)
end

-- A new rate keeps the number of tokens that are in use. Without a rate, `last_gap` is the gap of the last one. `hold` is when
-- the throttled user would have been free, or nil; it counts more than `tat`, which does not follow a clock that is set back.
-- If the new burst is smaller than what is in use, the user is held for longer than one gap: `debt` (us) says by how much.
function rate.change(u, gap, burst, hold)
  local before, most = gap or u.last_gap, math.huge
  if gap and hold then
    most = hold + gap * ((burst or 1) - 1)
  elseif gap then
    most = now + gap * (burst or 1)
  end
  local used = u.tat and before and math.max(0, math.min(u.tat, most) - now) / before or 0
  if u.gap and not gap then
    used = math.min(used, u.burst or 1)
    set(u, 'rated', now)
  end
  set(u, 'last_gap', not u.gap and before or nil)
  set(u, 'tat', used > 0 and now + math.ceil(used * (u.gap or before)) or nil)
  local debt = u.gap and math.ceil((used - (u.burst or 1)) * u.gap) or 0
  set(u, 'debt', debt > 0 and debt or nil)
  hold_again(u)
end

end

local charge, settle_charge
do

-- How a task was handed out, kept with it until it has ended: by a list, or early in the shard's ring, in the group's, or in both.
local BY_LIST, EARLY, EARLY_IN_GROUP = 1, 2, 4

-- One task handed out at this position, and its group's at that one (both nil: by a list): the user's place, its group's and its
-- rate tokens move on. Returns the cost charged and how the task was handed out. By tasks, a batch counts as one.
function charge(u, position, group_position, is_companion)
  local cost = fair_by_tasks and is_companion and 0 or expected_cost(u)
  rate.forget_step(u)
  local how, early = position and 0 or BY_LIST, advance(u, cost, position, is_companion)
  if early then how = u.group and EARLY_IN_GROUP or EARLY end
  if u.group and advance(u.floor, cost, group_position, is_companion) then how = how + EARLY end
  if u.gap then -- a token bucket kept as one number, the "theoretical arrival time" of the GCRA
    set(u, 'tat', math.max(u.tat or 0, now) + u.gap)
    rate.hold_if_out_of_tokens(u)
  end
  return cost, how
end

-- The task has ended (or was given back): what it really took replaces what was expected.
function settle_charge(u, t, took, is_run)
  local cost, moment = t.cost or 0, t.started or now
  add(u, 'busy', took)
  local real = is_run and (fair_by_tasks and cost or math.max(took, LEAST_COST)) or 0
  local how = t.how
  local is_beside, is_early, is_early_in_group = how == BY_LIST, how % 4 >= EARLY, how >= EARLY_IN_GROUP
  correct(u, cost, moment, real, is_beside, u.group and is_early_in_group or not u.group and is_early, t.is_companion)
  if u.group then correct(u.floor, cost, moment, real, is_beside, is_early, t.is_companion) end
  if not is_run then rate.give_token_back(u, moment) end
  if is_run and not fair_by_tasks then
    set(u, 'mean', u.mean and u.mean * 0.8 + real * 0.2 or real)
    set_stat('mean', stat.mean > 0 and stat.mean * 0.95 + real * 0.05 or real)
  end
end

end

local save_users
do

local function save_user(u)
  if u.is_damaged then return end
  if u.is_new and not next((changes(u))) then return end -- nothing was set before, so there is nothing to remove
  local idle, in_group = is_idle(u), u.group and can_be_served(u)
  local was_in_group = u.was_floor ~= stat and u.was_served
  if in_group and not was_in_group then
    count('behind', 1)
    zadd(K.grouped, 0, u.name)
  elseif was_in_group and not in_group then
    count('behind', -1)
    zrem(K.grouped, u.name)
  end
  take_place(u)
  if u.first_due then redis.call('ZADD', K.due, 'LT', exact(u.first_due), u.name) end
  u.first_due = nil
  if idle and (not u.was_idle or u.is_new) then
    zadd(K.users, now + user_ttl, u.name)
  elseif not idle and (u.was_idle or u.is_new) then
    zadd(K.users, NEVER, u.name)
  end
  local values, unset = changes(u)
  if #values == 0 then values = { 'run', exact(u.run) } end -- a record lasts until it is forgotten
  redis.call('HSET', u.key, unpack(values))
  if #unset > 0 then redis.call('HDEL', u.key, unpack(unset)) end
  u.is_new = false
  note_before(u)
  u.was_idle = is_idle(u)
end

-- Write everything that was changed since the last time.
function save_users()
  for _, u in ipairs(user_order) do
    if next(u.changed) then save_user(u) end
  end
  save_groups()
  flush()
end

end

-- Leave the marker that idle workers sleep on: a worker took it and there is more work, or work has come.
local function wake_if(needed)
  if needed and stat.paused == 0 and redis.call('ZCARD', K.ring) > 0 then redis.call('ZADD', K.wake, 0, 'ready') end
end

-- One consistent step is complete: users, buffered members, counters.
local function commit()
  save_users()
  flush_stats()
end
