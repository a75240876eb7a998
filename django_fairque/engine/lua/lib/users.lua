-- A user's record, its limits, and its ring: its organization's, or the shard's. Used by all commands that concern users.
--
-- Every field of the record but those of `records.TEXTS` is a number, so hostile names never meet a parser.
--
-- include calls keys counters records ring organizations

local users = {}

local attempt, TEXTS = calls.attempt, records.TEXTS -- used often

local by_name, order -- `order`: also `users.order`, the users of this call

-- Invariant: a record is forgotten only while nothing refers to it, and it differs from a new user's only in the limits of a plan, which the
-- next push brings again.
local function is_idle(user)
  return user.ready == 0 and user['ready:7'] == 0 and user['ready:0'] == 0 and user.sched == 0 and user.deferred == 0 and user.limited == 0 and user.parked == 0 and user.run == 0
    and user.dead == 0 and user.result_bytes == 0
    and not (user.paused or user.group or user.explicit)
    and (user.plan ~= nil or not (user.cap or user.gap or user.backlog or user.max_bytes or user.sla or user.weight ~= 1))
end
users.is_idle = is_idle

-- To read and convert a record takes a fifth of the time in which a task is settled and the next one handed out, so a function keeps
-- the records of the last 100 to 200 users. (Thousands of them would slow down Lua's garbage collection for all.) A kept record
-- is valid if the counters are the ones that were kept with it, and the record on the server has the same `version`, which each
-- write of the record increments. So these are noticed before anything is written: a failover, a call of other functions that ended
-- between its writes, and a key that is gone or has another type.
local KEPT = 100
local kept, number_kept = {}, 0 -- by key
local kept_before = {} -- the records that `kept` held when it was last full

each_call(function()
  for _, user in ipairs(order or {}) do
    if next(user.changed) or user.ended or user.given_back then -- not written: the call failed, or was a repeated one
      kept[user.key], kept_before[user.key] = nil, nil
    end
  end
  by_name, order = {}, {}
  users.order = order
end)

local function read_record(name, key)
  local user = { -- written out at its full size: a table that grows field by field is moved six times
    name = name, entry = name, key = key, windows = {}, weight = 1, tag = -math.huge, -- never served: before everyone
    ['ready:0'] = 0, ['ready:7'] = 0, ['ready:1'] = 0, ['ready:2'] = 0, ['ready:3'] = 0, ['ready:4'] = 0, ['ready:5'] = 0, ['ready:6'] = 0, ready = 0,
    sched = 0, deferred = 0, limited = 0, parked = 0, parked_urgent = 0, bytes = 0, dead = 0, result_bytes = 0, started = 0, finished = 0, failed = 0, busy = 0, waited = 0,
    run = 0, expected = 0, start = 0, over = 0, credit = 0, companions = 0, counted = 0, came = 0,
    ring_owner = false, was_ring_owner = false,
    is_new = true, was_served = false, was_idle = false, is_other = false, was_tag = 0, changed = {}, version = 0, read_with = counters.shard,
  }
  local flat = attempt('HGETALL', key)
  user.is_damaged = not flat -- never served, and not written
  flat = flat or {}
  for i = 1, #flat, 2 do
    local field, value = flat[i], flat[i + 1]
    if TEXTS[field] then
      user[field] = value
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

-- Return the record of a user, once in a call. Invariant: it is the server's record, and the ring owner is its organization or the shard.
function users.load(name)
  local user = by_name[name]
  if user then return user end
  local key = keys.user(name)
  user = kept[key] or kept_before[key]
  if user and user.read_with == counters.shard and tonumber(attempt('HGET', key, 'version')) == user.version then
    forget_call(user)
  else
    user = read_record(name, key)
  end
  if not user.is_damaged then keep(key, user) end
  user.ring_owner = user.group and organizations.ring_owner(user.group) or counters.shard
  ring.note_place(user)
  user.was_idle = is_idle(user)
  by_name[name] = user
  order[#order + 1] = user
  return user
end
