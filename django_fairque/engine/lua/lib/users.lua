-- A user's record, its limits, and its ring, which is the ring of its organization or of the shard. Used by all
-- commands that concern users.
--
-- include calls keys counters ring organizations user_record

local users = {}

local CHUNK, attempt = calls.CHUNK, calls.attempt -- local aliases, which Lua finds faster: these functions are called often

local by_name, order -- `order` (also `users.order`): the users of this call

-- Return whether a user's record may be deleted later. Invariant: nothing refers to it, and it differs from a new
-- user's record only in the limits of a plan, which the next push sets again.
local function is_idle(user)
  return user.ready == 0 and user.run == 0 and user['ready:7'] == 0 and user['ready:0'] == 0 and user.sched == 0 and user.deferred == 0 and user.limited == 0
    and user.parked == 0 and user.dead == 0 and user.result_bytes == 0
    and not (user.paused or user.group or user.explicit)
    and (user.plan ~= nil or not (user.cap or user.gap or user.backlog or user.max_bytes or user.sla or user.weight ~= 1))
end
users.is_idle = is_idle

-- Converting a record takes a tenth of the time in which a task is settled and the next one handed out, so a function
-- keeps the records of the last 100 to 200 users. (Thousands of records would slow down Lua's garbage collection for
-- all calls.) A kept record is valid if the text on the server is the text from which it was read or as which it was
-- written.
local KEPT = 100
local kept, number_kept = {}, 0 -- by key
local kept_before = {} -- the records that `kept` held when it was last full
local texts -- by key: the texts that `users.preload` has read

each_call(function()
  for _, user in ipairs(order or {}) do
    if user.is_placed or next(user.changed) or user.ended or user.given_back then -- the call failed or was a repeated call
      kept[user.key], kept_before[user.key] = nil, nil
    end
  end
  by_name, order, texts = {}, {}, {}
  users.order = order
end)

-- Remove values that the previous call has set, except the fields of the record.
local function forget_call(user)
  if next(user.windows) then user.windows = {} end
  if user.is_skipped then user.is_skipped = nil end -- setting a missing field would make the table larger
  if user.is_unreadable then user.is_unreadable = nil end
  if user.margin then user.margin = nil end
  if user.has_parked then user.has_parked = nil end
  if user.first_due then user.first_due = nil end
  if user.touched_scheduled then user.touched_scheduled = nil end
end

local function keep(key, user)
  if kept[key] == user then return end
  if number_kept >= KEPT then kept, number_kept, kept_before = {}, 0, kept end
  if not kept[key] then number_kept = number_kept + 1 end
  kept[key] = user
end

-- Read the texts of the records of these users, with one command for all of them. If some have none, one more command
-- checks them, because `MGET` treats a key of another type as a missing key.
function users.preload(names)
  if not names[2] then return end -- `users.load` reads a single record with one command too
  local wanted, is_wanted = {}, {}
  for _, name in ipairs(names) do
    local key = keys.user(name)
    if not (by_name[name] or texts[key] ~= nil or is_wanted[key]) then wanted[#wanted + 1], is_wanted[key] = key, true end
  end
  if not wanted[2] then return end
  local missing = {}
  for first = 1, #wanted, CHUNK do
    local found = redis.call('MGET', unpack(wanted, first, math.min(first + CHUNK - 1, #wanted)))
    for i = 1, #found do
      local key = wanted[first + i - 1]
      if found[i] then texts[key] = found[i] else missing[#missing + 1] = key end
    end
  end
  for first = 1, #missing, CHUNK do
    local last = math.min(first + CHUNK - 1, #missing)
    if redis.call('EXISTS', unpack(missing, first, last)) == 0 then
      for i = first, last do texts[missing[i]] = false end
    end
  end
end

-- Return the record of a user, which is read once in a call. Invariant: it equals the server's record, and the ring
-- owner is the user's organization or the shard.
function users.load(name)
  local user = by_name[name]
  if user then return user end
  local key = keys.user(name)
  local text = texts[key]
  if text == nil then text = attempt('GET', key) end
  user = kept[key] or kept_before[key]
  if user and text == user.text then
    forget_call(user)
  else
    user = text ~= nil and user_record.read(name, key, text)
    if not user then
      user = user_record.read(name, key, false)
      user.is_damaged = true -- a key of another type, or no valid record: the user is never served, and not written
    end
  end
  if not user.is_damaged then keep(key, user) end
  user.ring_owner = user.group and organizations.ring_owner(user.group) or counters.shard
  ring.note_place(user, ring.can_be_served(user))
  user.was_idle = is_idle(user)
  by_name[name] = user
  order[#order + 1] = user
  return user
end
