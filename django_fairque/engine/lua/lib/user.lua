-- A user's record and its place in the ring.
--
-- A user is in the ring if and only if it can be served now; `save_user` compares that before and after and is
-- the only place that adds or removes anyone. The tag is the user's virtual start tag (start-time fair queueing:
-- Goyal, Vin, Cheng 1996), its score in the ring the position that follows from it:
--   coming back behind the virtual time, it starts at the virtual time (what it did not use is gone) and stands
--   one expected task before it: the next to be served. Newcomers stand in the order of their arrival.
--   Refunded to before the virtual time, it stands at the virtual time: still after any newcomer.
-- Every field of the record is a number, so hostile names never meet a parser.

local TASK_COST = 1e6   -- charged by tasks: one task counts as one second
local FIRST_COST = 1e5  -- expected of a task before any has been seen: 0.1 s
local LEAST_COST = 100  -- no task is cheaper than handling it

local READY = { 'ready:1', 'ready:2', 'ready:3', 'ready:4', 'ready:5', 'ready:6' }
local DEPTH = { 'depth:1', 'depth:2', 'depth:3', 'depth:4', 'depth:5', 'depth:6' }

local users, user_order
each_call(function() users, user_order = {}, {} end)

local function can_be_served(u)
  return u.ready > 0 and not u.paused and not u.held and (not u.cap or u.run < u.cap)
end

local function is_idle(u)
  return u.ready == 0 and u.sched == 0 and u.deferred == 0 and u.run == 0
    and not (u.paused or u.cap or u.gap or u.backlog or u.sla or u.weight ~= 1)
end

local function note_before(u)
  u.was_served, u.was_idle, u.was_tag = can_be_served(u), is_idle(u), u.tag
  u.changed = {}
end

local function load_user(name)
  local u = users[name]
  if u then return u end
  u = { -- written out at its full size: a table that grows field by field is moved six times
    name = name, key = user_key(name), lanes = {}, weight = 1, tag = -math.huge, -- never served: before everyone
    ['ready:1'] = 0, ['ready:2'] = 0, ['ready:3'] = 0, ['ready:4'] = 0, ['ready:5'] = 0, ['ready:6'] = 0, ready = 0,
    sched = 0, deferred = 0, run = 0, started = 0, finished = 0, failed = 0, busy = 0, waited = 0,
    is_new = true, was_served = false, was_idle = false, was_tag = 0, changed = false,
  }
  local flat = redis.call('HGETALL', u.key)
  for i = 1, #flat, 2 do u[flat[i]] = tonumber(flat[i + 1]) end
  u.is_new = #flat == 0
  u.ready = u['ready:1'] + u['ready:2'] + u['ready:3'] + u['ready:4'] + u['ready:5'] + u['ready:6']
  note_before(u)
  users[name] = u
  user_order[#user_order + 1] = u
  return u
end

local function set(u, field, value)
  u[field] = value
  u.changed[field] = true
end

local function add(u, field, amount) set(u, field, u[field] + amount) end

local function add_ready(u, priority, amount)
  add(u, READY[priority], amount)
  u.ready = u.ready + amount
  count(DEPTH[priority], amount)
end

local function expected_cost(u)
  if fair_by_tasks then return TASK_COST end
  return math.max(LEAST_COST, u.mean or (stat.mean > 0 and stat.mean) or FIRST_COST)
end

-- The same for every user, so that newcomers keep the order in which they came.
local function credit()
  if fair_by_tasks then return TASK_COST end
  return math.max(LEAST_COST, stat.mean > 0 and stat.mean or FIRST_COST)
end

-- The next place in the order of arrival: a step after the last, so that no two tags are equal and no tie is left
-- to be broken by name. The step must outlive the tag's growth: half a nanosecond of worker time is exact in a
-- double up to a virtual time of 2^41 us (25 days of one user alone on one slot); from 2^38 on it grows along.
local FIRST_STEP_AT = 2 ^ 38
local function arrive()
  local at = math.max(stat.arrival, stat.vtime)
  local _, exponent = math.frexp(math.max(at, FIRST_STEP_AT))
  set_stat('arrival', at + math.ldexp(1, exponent - 50))
  return stat.arrival
end

local ring_grew -- someone can be served who could not before
each_call(function() ring_grew = false end)

local function join_ring(u)
  local position = u.tag
  if u.tag < stat.vtime then
    local before = u.tag
    set(u, 'tag', arrive())
    -- Before anything has been served nobody is behind, so nobody is owed a credit.
    position = stat.started > 0 and math.max(before, u.tag - credit()) or u.tag
  end
  zadd(K.ring, position, u.name)
  ring_grew = true
end

local function ring_position(u)
  return u.tag < stat.vtime and arrive() or u.tag
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

-- One task handed out: virtual time, the user's next tag and its rate tokens move on. Returns the cost charged.
local function charge(u)
  local cost = expected_cost(u)
  forget_step(u)
  set_stat('vtime', math.max(stat.vtime, u.tag))
  set(u, 'tag', u.tag + cost / u.weight)
  add(u, 'run', 1)
  add(u, 'started', 1)
  if u.gap then -- a token bucket kept as one number, the "theoretical arrival time" of the GCRA
    set(u, 'tat', math.max(u.tat or 0, now) + u.gap)
    hold_if_out_of_tokens(u)
  end
  return cost
end

-- The task has ended (or was given back): what it really took replaces what was expected.
local function settle_charge(u, cost, took, is_run)
  add(u, 'run', -1)
  add(u, 'busy', took)
  if fair_by_tasks then
    if not is_run then set(u, 'tag', u.tag - cost / u.weight) end
    return
  end
  local real = is_run and math.max(took, LEAST_COST) or 0
  set(u, 'tag', u.tag + (real - cost) / u.weight)
  if is_run then
    set(u, 'mean', u.mean and u.mean * 0.8 + real * 0.2 or real)
    set_stat('mean', stat.mean > 0 and stat.mean * 0.95 + real * 0.05 or real)
  end
end

local function save_user(u)
  local values, unset = {}, {}
  for field in pairs(u.changed) do
    if u[field] == nil then
      unset[#unset + 1] = field
    else
      values[#values + 1] = field
      values[#values + 1] = exact(u[field])
    end
  end
  if u.is_new and #values == 0 then return end -- nothing was set before, so there is nothing to remove
  if #unset > 0 and #values == 0 then values = { 'run', exact(u.run) } end -- a record lasts until it is forgotten
  local served, idle = can_be_served(u), is_idle(u)
  if served and not u.was_served then
    join_ring(u)
    values[#values + 1] = 'tag'
    values[#values + 1] = exact(u.tag)
  elseif served and u.tag ~= u.was_tag then
    zadd(K.ring, ring_position(u), u.name)
  elseif u.was_served and not served then
    zrem(K.ring, u.name)
  end
  if idle and (not u.was_idle or u.is_new) then
    zadd(K.users, now + user_ttl, u.name)
  elseif not idle and (u.was_idle or u.is_new) then
    zadd(K.users, NEVER, u.name)
  end
  redis.call('HSET', u.key, unpack(values))
  if #unset > 0 then redis.call('HDEL', u.key, unpack(unset)) end
  u.is_new = false
  note_before(u)
end

-- Write everything that was changed since the last time.
local function save_users()
  for _, u in ipairs(user_order) do
    if next(u.changed) then save_user(u) end
  end
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
