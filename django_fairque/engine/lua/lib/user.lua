-- A user's record and its place in a ring: its group's, or the shard's.
--
-- Every field of the record but the name of the group is a number, so hostile names never meet a parser.

local READY = { 'ready:1', 'ready:2', 'ready:3', 'ready:4', 'ready:5', 'ready:6' }
local DEPTH = { 'depth:1', 'depth:2', 'depth:3', 'depth:4', 'depth:5', 'depth:6' }

local users, user_order
each_call(function() users, user_order = {}, {} end)

local function is_idle(u)
  return u.ready == 0 and u.sched == 0 and u.deferred == 0 and u.run == 0
    and not (u.paused or u.cap or u.gap or u.backlog or u.sla or u.group or u.weight ~= 1)
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
    sched = 0, deferred = 0, started = 0, finished = 0, failed = 0, busy = 0, waited = 0,
    run = 0, expected = 0, begun = 0, over = 0, beside = 0,
    floor = false, was_floor = false,
    is_new = true, was_served = false, was_idle = false, was_tag = 0, changed = false,
  }
  local flat = redis.call('HGETALL', u.key)
  for i = 1, #flat, 2 do
    if flat[i] == 'group' then u.group = flat[i + 1] else u[flat[i]] = tonumber(flat[i + 1]) end
  end
  u.is_new = #flat == 0
  u.floor = floor_of(u.group)
  u.ready = u['ready:1'] + u['ready:2'] + u['ready:3'] + u['ready:4'] + u['ready:5'] + u['ready:6']
  note_before(u)
  u.was_idle = is_idle(u)
  users[name] = u
  user_order[#user_order + 1] = u
  return u
end

local function add_ready(u, priority, amount)
  add(u, READY[priority], amount)
  u.ready = u.ready + amount
  count(DEPTH[priority], amount)
end

local function expected_cost(u)
  if fair_by_tasks then return TASK_COST end
  return math.floor(math.max(LEAST_COST, u.mean or (stat.mean > 0 and stat.mean) or FIRST_COST))
end

-- Who is served, or let go, has a token: a rate that says otherwise is of a clock that was ahead and has been set right.
local function forget_step(u)
  if u.gap and u.tat then u.tat = math.min(u.tat, now + u.gap * ((u.burst or 1) - 1)) end
end

local function hold_if_out_of_tokens(u)
  if not u.gap then return end
  local free = (u.tat or 0) - u.gap * ((u.burst or 1) - 1)
  if free > now then
    set(u, 'held', free)
    zadd(K.throttled, free, u.name)
    look_at(free)
  end
end

-- What was given back has used none.
local function give_token_back(u)
  if not (u.gap and u.tat) then return end
  set(u, 'tat', u.tat - u.gap)
  if u.held then
    set(u, 'held', nil)
    hold_if_out_of_tokens(u)
    if not u.held then zrem(K.throttled, u.name) end
  end
end

-- One task handed out: the user's place, its group's and its rate tokens move on. Returns the cost charged.
local function charge(u, is_in_turn)
  local cost = expected_cost(u)
  forget_step(u)
  advance(u, cost, is_in_turn)
  if u.group then advance(u.floor, cost, is_in_turn) end
  if u.gap then -- a token bucket kept as one number, the "theoretical arrival time" of the GCRA
    set(u, 'tat', math.max(u.tat or 0, now) + u.gap)
    hold_if_out_of_tokens(u)
  end
  return cost
end

-- The task has ended (or was given back): what it really took replaces what was expected.
local function settle_charge(u, t, took, is_run)
  local cost, moment = t.cost or 0, t.started or now
  add(u, 'busy', took)
  local real = is_run and (fair_by_tasks and cost or math.max(took, LEAST_COST)) or 0
  correct(u, cost, moment, real, t.is_beside)
  if u.group then correct(u.floor, cost, moment, real, t.is_beside) end
  if not is_run then give_token_back(u) end
  if is_run and not fair_by_tasks then
    set(u, 'mean', u.mean and u.mean * 0.8 + real * 0.2 or real)
    set_stat('mean', stat.mean > 0 and stat.mean * 0.95 + real * 0.05 or real)
  end
end

-- Into another group, out of one, or into one, with all its work. What it is ahead of the others it stays, and a new
-- group is as far ahead as who founds it: moving to and fro makes nobody a newcomer. Of its running tasks the group that it
-- leaves pays for what they have used, the other for the rest.
local function change_group(u, name)
  if u.group == name then return end
  local ahead, in_ring = u.tag - u.floor.vtime, u.group and u.floor or u
  local ahead_in_ring = in_ring.tag - stat.vtime
  local used = elapsed(u)
  if u.group then
    add(u.floor, 'members', -1)
    account(u.floor, -u.run, -u.expected, -u.begun, used)
  end
  set(u, 'group', name)
  u.floor = floor_of(name)
  if name then
    local g = u.floor
    add(g, 'members', 1)
    account(g, u.run, u.expected, u.begun, -used)
    if g.tag == -math.huge and ahead_in_ring >= 0 then set(g, 'tag', arrive(stat) + ahead_in_ring) end
  end
  begin_at(u, ahead >= 0 and arrive(u.floor) + ahead or -math.huge)
end

local function save_user(u)
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
local function save_users()
  for _, u in ipairs(user_order) do
    if next(u.changed) then save_user(u) end
  end
  save_groups()
  flush()
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
