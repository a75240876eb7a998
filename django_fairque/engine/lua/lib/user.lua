-- A user's record, its limits, and its place in a ring: its organization's, or the shard's. Used by all commands that concern users.
--
-- Every field of the record but the name of the organization and the note of a pause is a number, so hostile names never meet a parser.

local READY = { 'ready:1', 'ready:2', 'ready:3', 'ready:4', 'ready:5', 'ready:6' }

local users, user_order

local function is_idle(user)
  return user.ready == 0 and user.sched == 0 and user.deferred == 0 and user.run == 0
    and user.dead == 0 and user.result_bytes == 0
    and not (user.paused or user.cap or user.gap or user.backlog or user.max_bytes or user.sla or user.group or user.weight ~= 1)
end

-- The owner of the ring that a user with this organization is in.
local function ring_owner_of(organization_name)
  if not organization_name then return stat end
  if not organizations[organization_name] then touch(members_key(organization_name)) end
  return load_organization(organization_name)
end

local load_user
do

-- To read and convert a record takes a fifth of the time in which a task is settled and the next one handed out, so a function keeps
-- the records of the last 100 to 200 users. (Thousands of them would slow down Lua's garbage collection for all.) A kept record
-- is valid if the counters are the ones that were kept with it, and the record on the server has the same `version`, which each write of
-- it increments. So a failover, and a call of other functions that ended between its writes, are noticed; also a key that is gone or
-- of another type, before anything is written.
local KEPT = 100
local kept, number_kept = {}, 0 -- by key
local kept_before = {} -- those that were kept when `kept` was last full

each_call(function()
  for _, user in ipairs(user_order or {}) do
    if next(user.changed) or user.ended or user.given_back then -- not written: the call failed, or was a repeated one
      kept[user.key], kept_before[user.key] = nil, nil
    end
  end
  users, user_order = {}, {}
end)

local function read_record(name, key)
  local user = { -- written out at its full size: a table that grows field by field is moved six times
    name = name, entry = name, key = key, windows = {}, weight = 1, tag = -math.huge, -- never served: before everyone
    ['ready:1'] = 0, ['ready:2'] = 0, ['ready:3'] = 0, ['ready:4'] = 0, ['ready:5'] = 0, ['ready:6'] = 0, ready = 0,
    sched = 0, deferred = 0, bytes = 0, dead = 0, result_bytes = 0, started = 0, finished = 0, failed = 0, busy = 0, waited = 0,
    run = 0, expected = 0, start = 0, over = 0, credit = 0, companions = 0, counted = 0, came = 0,
    ring_owner = false, was_ring_owner = false,
    is_new = true, was_served = false, was_idle = false, is_other = false, was_tag = 0, changed = {}, version = 0, read_with = stat,
  }
  local flat = attempt('HGETALL', key)
  user.is_damaged = not flat -- never served, and not written
  flat = flat or {}
  for i = 1, #flat, 2 do
    local field, value = flat[i], flat[i + 1]
    if field == 'group' then
      user.group = value
    else
      value = tonumber(value)
      if value and value > -1e24 and value < 1e24 then user[field] = value end -- as `number`, without a call for each field
    end
  end
  if user.weight <= 0 then user.weight = 1 end
  user.is_new = #flat == 0
  user.ready = user['ready:1'] + user['ready:2'] + user['ready:3'] + user['ready:4'] + user['ready:5'] + user['ready:6']
  return user
end

-- Remove what the call before has set, except the fields of the record.
local function forget_call(user)
  if next(user.windows) then user.windows = {} end
  user.is_skipped, user.is_unreadable, user.margin, user.first_due, user.touched_scheduled = nil, nil, nil, nil, nil
end

local function keep(key, user)
  if kept[key] == user then return end
  if number_kept >= KEPT then kept, number_kept, kept_before = {}, 0, kept end
  if not kept[key] then number_kept = number_kept + 1 end
  kept[key] = user
end

function load_user(name)
  local user = users[name]
  if user then return user end
  local key = user_key(name)
  user = kept[key] or kept_before[key]
  if user and user.read_with == stat and tonumber(attempt('HGET', key, 'version')) == user.version then
    forget_call(user)
  else
    user = read_record(name, key)
  end
  if not user.is_damaged then keep(key, user) end
  user.ring_owner = ring_owner_of(user.group)
  note_place(user)
  user.was_idle = is_idle(user)
  users[name] = user
  user_order[#user_order + 1] = user
  return user
end

end

-- A scheduled task stands in the registry and among its user's, and its user in `due`. That says only by when the user's first
-- one is due at the earliest: users take turns there (lib/due_work.lua), and a task that leaves changes nothing.
local function schedule(user, id, due)
  zadd(K['state:scheduled'], due, id)
  zadd(scheduled_key(user.name), due, id)
  user.first_due = math.min(user.first_due or due, due)
  look_at(due)
  add(user, 'sched', 1)
end

local function unschedule(user, id)
  zrem(K['state:scheduled'], id)
  zrem(scheduled_key(user.name), id)
  add(user, 'sched', -1)
end

local add_ready
do

local DEPTH = { 'depth:1', 'depth:2', 'depth:3', 'depth:4', 'depth:5', 'depth:6' }
function add_ready(user, priority, amount)
  add(user, READY[priority], amount)
  user.ready = user.ready + amount
  count('depth:' .. priority, amount)
end

end

local rate = {} -- in one table: a script has room for 200 names
do

-- A user that may start a task has a rate token. If the record disagrees, the server's clock was ahead and was set
-- back: ignore the record.
function rate.forget_step(user)
  if user.gap and user.tat then user.tat = math.min(user.tat, now + user.gap * ((user.burst or 1) - 1)) end
end

function rate.hold_if_out_of_tokens(user)
  if not user.gap then return end
  local free = (user.tat or 0) - user.gap * ((user.burst or 1) - 1)
  if free > now then
    set(user, 'held', free)
    zadd(K.throttled, free, user.name)
    look_at(free)
  end
end

-- `paused` is 1, or the moment at which the pause ends. In `throttled` a user stands until its rate allows another task, or else until
-- its pause ends; an organization until its pause ends. If a rate holds a user too, the end of the pause is looked at afterwards.
-- A command is also given its length, as a negative number.
function rate.pause_end(value)
  value = tonumber(value)
  return value and value < 0 and now - value or value
end
function rate.note_pause(one)
  if one.held then return end
  if (one.paused or 0) > 1 then
    zadd(K.throttled, one.paused, one.entry)
    look_at(one.paused)
  else
    zrem(K.throttled, one.entry)
  end
end

local function hold_again(user)
  if user.held then
    set(user, 'held', nil)
    rate.hold_if_out_of_tokens(user)
    if not user.held then rate.note_pause(user) end
  else
    rate.hold_if_out_of_tokens(user)
  end
end

-- A task that was given back at once has used no token. One that was handed out before there was a rate had used none anyway.
function rate.give_token_back(user, handed_out)
  if not (user.gap and user.tat) or handed_out < (user.rated or 0) then return end
  set(user, 'tat', user.tat - user.gap)
  hold_again(user)
end

-- A new rate keeps the number of tokens that are in use. Without a rate, `last_gap` is the gap of the last one. `hold` is when
-- the throttled user would have been free, or nil; it counts more than `tat`, which does not follow a clock that is set back.
-- If the new burst is smaller than what is in use, the user is held for longer than one gap: `debt` (us) says by how much.
function rate.change(user, gap, burst, hold)
  local before, most = gap or user.last_gap, math.huge
  if gap and hold then
    most = hold + gap * ((burst or 1) - 1)
  elseif gap then
    most = now + gap * (burst or 1)
  end
  local used = user.tat and before and math.max(0, math.min(user.tat, most) - now) / before or 0
  if user.gap and not gap then
    used = math.min(used, user.burst or 1)
    set(user, 'rated', now)
  end
  set(user, 'last_gap', not user.gap and before or nil)
  set(user, 'tat', used > 0 and now + math.ceil(used * (user.gap or before)) or nil)
  local debt = user.gap and math.ceil((used - (user.burst or 1)) * user.gap) or 0
  set(user, 'debt', debt > 0 and debt or nil)
  hold_again(user)
end

end

local charge, charge_more, settle_charge, apply_charges
do

-- One task handed out at this position, and its organization's at that one (both nil: by a list): the user's place, its organization's and its
-- rate tokens move on. Returns the cost charged, and its parts of the lead in the shard's ring and in the organization's. By tasks, a
-- batch counts as one.
function charge(user, position, organization_position, is_companion)
  local cost = fair_by_tasks and is_companion and 0 or expected_cost(user)
  rate.forget_step(user)
  local part, organization_part = advance(user, cost, position, is_companion), 0
  if user.group then organization_part, part = part, advance(user.ring_owner, cost, organization_position, is_companion) end
  if user.gap then -- a token bucket kept as one number, the "theoretical arrival time" of the GCRA
    set(user, 'tat', math.max(user.tat or 0, now) + user.gap)
    rate.hold_if_out_of_tokens(user)
  end
  return cost, part, organization_part
end

-- More tasks in the turn of a user that was charged for one. No other user waits for its turn meanwhile, so the virtual time stays.
function charge_more(user, tasks, cost)
  for _, one in ipairs({ user, user.group and user.ring_owner }) do
    account(one, tasks, tasks * cost, tasks * (now - EPOCH), 0, 0)
    add(one, 'started', tasks)
  end
end

-- The task has ended (or was given back): what it really took replaces what was expected. A call adds up the tasks of a user that
-- ended, and of those that were given back, and the user's record gets the sums when it is saved.
function settle_charge(user, task, took, waited, is_run)
  local which = is_run and 'ended' or 'given_back'
  local sums = user[which]
  if not sums then
    sums = {
      tasks = 0, cost = 0, start = 0, used = 0, companions = 0, listed = 0, lead = 0, organization_lead = 0, busy = 0, waited = 0,
      finished = 0,
    }
    user[which], user.changed.run = sums, true
  end
  local cost, used = task.cost or 0, 0
  if is_run then
    used = fair_by_tasks and cost or took > LEAST_COST and took or LEAST_COST
    if not fair_by_tasks then
      user.mean = user.mean and user.mean * 0.8 + used * 0.2 or used
      stat.mean = stat.mean > 0 and stat.mean * 0.95 + used * 0.05 or used
      stat_changed.mean, user.changed.mean = true, true
    end
  else
    rate.give_token_back(user, task.started or now)
  end
  sums.tasks, sums.cost, sums.used = sums.tasks + 1, sums.cost + cost, sums.used + used
  sums.busy, sums.waited = sums.busy + took, sums.waited + waited
  if task.is_companion then
    sums.companions = sums.companions + 1
  else
    sums.start = sums.start + EPOCH - (task.started or now)
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
  correct(user, sums, user.group and sums.organization_lead or sums.lead, is_given_back)
  if user.group then correct(user.ring_owner, sums, sums.lead, is_given_back) end
  if sums.busy ~= 0 then
    add(user, 'busy', sums.busy)
    note_work(user, sums.busy)
  end
  if sums.waited ~= 0 then add(user, 'waited', sums.waited) end
  if sums.finished ~= 0 then add(user, 'finished', sums.finished) end
end

function apply_charges(user)
  apply_sums(user, 'ended')
  apply_sums(user, 'given_back')
end

end

local place_users, save_users
do

-- Add the user to its ring or remove it, and the same for the indexes of users that depend on that.
local function place_user(user)
  local idle, in_organization = is_idle(user), user.group and can_be_served(user)
  local was_in_organization = user.was_ring_owner ~= stat and user.was_served
  if in_organization and not was_in_organization then
    count('behind', 1)
    zadd(K.grouped, 0, user.name)
  elseif was_in_organization and not in_organization then
    count('behind', -1)
    zrem(K.grouped, user.name)
  end
  take_place(user)
  if user.first_due then redis.call('ZADD', K.due, 'LT', exact(user.first_due), user.name) end
  user.first_due = nil
  if idle and (not user.was_idle or user.is_new) then
    zadd(K.users, now + user_ttl, user.name)
  elseif not idle and (user.was_idle or user.is_new) then
    zadd(K.users, NEVER, user.name)
  end
  note_place(user)
  user.was_idle = idle
end

local function has_values(user)
  for field in pairs(user.changed) do
    if user[field] ~= nil and user[field] ~= -math.huge then return true end -- never served
  end
  return false
end

local function save_user(user)
  if user.is_damaged then return end
  if user.is_new and not has_values(user) then return end -- nothing was set before, so there is nothing to remove
  place_user(user)
  add(user, 'version', 1)
  local values, unset = changes(user)
  redis.call('HSET', user.key, unpack(values))
  if #unset > 0 then redis.call('HDEL', user.key, unpack(unset)) end
  user.is_new = false
  set_stat('clock', stat.clock) -- the counters are written too: other functions have kept what they were
  forget_changes(user)
end

-- Puts users where they stand after what was changed, before the rings are read again. `save_users` follows in the same call.
function place_users()
  for _, user in ipairs(user_order) do apply_charges(user) end
  for _, user in ipairs(user_order) do
    if next(user.changed) and not (user.is_damaged or user.is_new) then place_user(user) end
  end
  save_organizations()
  flush()
end

-- Write everything that was changed since the last time.
function save_users()
  for _, user in ipairs(user_order) do apply_charges(user) end
  for _, user in ipairs(user_order) do
    if next(user.changed) then save_user(user) end
  end
  save_organizations()
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
