-- The end of a consistent step: write the changed users, organizations and counters.
--
-- include numbers options calls counters clock replies statistics writes ring organizations user_record users limits charges task_names

local saving = {}

local take_place, note_place, apply = ring.take_place, ring.note_place, charges.apply -- local aliases, which Lua finds faster: these functions are called often

-- Count a user that can start a task but is not in the shard's ring. Invariant: the number of the ring's entries plus
-- `behind` is the number of users with a task of any lane that can be started; `grouped` has those of these users that
-- are members of organizations.
local function count_behind(user, was_member)
  local can_start, could_start = ring.can_start_any(user), user.was_served or user.was_urgent or user.was_bulk or false
  local is_behind = can_start and (user.group ~= nil or not ring.can_be_served(user))
  if is_behind ~= (could_start and (was_member or not user.was_served)) then counters.count('behind', is_behind and 1 or -1) end
  local is_grouped, was_grouped = user.group and can_start, was_member and could_start
  if is_grouped and not was_grouped then
    writes.zadd(K.grouped, 0, user.name)
  elseif was_grouped and not is_grouped then
    writes.zrem(K.grouped, user.name)
  end
end

-- Write the position of a user. Invariant: the indexes `users` and `due` agree with the user's record.
local function place_user(user)
  local idle, was_member = users.is_idle(user), user.was_ring_owner ~= counters.shard
  local has_lanes = user['ready:7'] > 0 or user['ready:0'] > 0 or user.was_urgent or user.was_bulk
  if user.group or was_member or has_lanes then count_behind(user, was_member) end
  local served = take_place(user)
  ring.note_parked(user)
  if user.first_due then
    redis.call('ZADD', K.due, 'LT', numbers.exact(user.first_due), user.name)
    user.first_due = nil
  end
  if idle and (not user.was_idle or user.is_new) then
    writes.zadd(K.users, math.max(clock.now, user.gap and user.tat or 0) + options.user_ttl, user.name) -- keep it until the user's rate tokens are back
  elseif not idle and (user.was_idle or user.is_new) then
    writes.zadd(K.users, clock.NEVER, user.name)
  end
  note_place(user, served)
  user.was_idle = idle
end

local function has_values(user)
  for field in pairs(user.changed) do
    if user[field] ~= nil and user[field] ~= -math.huge then return true end -- minus infinity is the tag of a user that was never served
  end
  return false
end

local saved = { nil, nil } -- keys and texts of records alternate

local function save_user(user)
  if user.is_damaged then return end
  if user.is_new and not has_values(user) then return end -- no field was set, so there is no record to write
  if next(user.changed) then place_user(user) end
  local text, n = user_record.pack(user), #saved
  saved[n + 1], saved[n + 2] = user.key, text
  user.text, user.is_new = text, false
  if user.is_placed then user.is_placed = nil end
end

local function write_saved()
  if saved[1] then counters.set('clock', counters.shard.clock) end -- the counters are written too, so that functions which keep data notice the change
  for first = 1, #saved, calls.CHUNK do redis.call('MSET', unpack(saved, first, math.min(first + calls.CHUNK - 1, #saved))) end
  if saved[1] then saved = { nil, nil } end
end
each_call(function()
  if saved[1] then saved = { nil, nil } end -- a call that failed may have left this
end)

-- Write the new positions of the changed users to the rings, before the rings are read again. Invariant:
-- `saving.commit` follows in the same call, so only a call that fails leaves a record unwritten. The position of a user
-- that does not change again is not written twice (`is_placed`).
function saving.place_users()
  local order = users.order
  for _, user in ipairs(order) do
    if user.ended or user.given_back then apply(user) end
  end
  limits.save()
  for _, user in ipairs(order) do
    if next(user.changed) and not (user.is_damaged or user.is_new) then
      place_user(user)
      user_record.note_changes(user)
      user.is_placed = true
    end
  end
  organizations.save()
  writes.flush()
end

-- Write all users, organizations and limits that were changed since the last call.
local function save_users()
  local order = users.order
  for _, user in ipairs(order) do
    if user.ended or user.given_back then apply(user) end
  end
  limits.save()
  for _, user in ipairs(order) do
    if user.is_placed or next(user.changed) then save_user(user) end
  end
  write_saved()
  organizations.save()
  writes.flush()
end

-- End a consistent step: write users, buffered members and counters.
function saving.commit()
  save_users()
  task_names.flush()
  statistics.flush()
end

-- End a call, and store its reply, so that a repeated call gets the same reply. Call it after `saving.commit`.
function saving.finish(reply)
  ring.wake_if(ring.has_grown)
  redis.call('SET', K.reply, reply, 'PX', replies.ttl(#reply))
  statistics.flush()
  return reply
end
