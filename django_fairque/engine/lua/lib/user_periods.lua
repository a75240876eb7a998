-- Figures of a user by hour and by UTC day, for its page in the admin and for reports. The figures are counted when
-- attempts end.
--
-- The record has the current hour (`period`), its counts (`ended:0` to `ended:20`) and the counts of the same day
-- before this hour (`before:0` to `before:20`). So a call that ends tasks of a user reads and writes only its record.
-- When an hour ends, its counts and those of its day are written to the hash `periods:{user}`, which expires: `h0` to
-- `h47` and `d0` to `d34`, each with the number of its hour or day, because the fields are used again. Counts are whole
-- numbers in the order of COUNTERS, then waits by bucket (lib/recent_usage.lua); zeros at the end are left out.
-- engine/users/history.py reads the hash.
--
-- include numbers calls keys clock slot records recent_usage

local user_periods = {}

local HOUR, HOURS, DAYS, TTL = 3600e6, 48, 35, 36 * 86400e3
local COUNTERS, FIRST_WAIT, LAST = { finished = 0, failed = 1, dead = 2, kept = 3, missed = 4 }, 5, 20
local ENDED, BEFORE = {}, {}
for index = 0, LAST do
  ENDED[index], BEFORE[index] = 'ended:' .. index, 'before:' .. index
end

local function present_hour() return math.floor(clock.now / HOUR) end

-- Return the sums of some fields of a user as a text, without the zeros at the end.
local function pack(user, ...)
  local counts, last = {}, 0
  for index = 0, LAST do
    local sum = 0
    for _, names in ipairs({ ... }) do sum = sum + (user[names[index]] or 0) end
    counts[index + 1] = string.format('%d', math.min(sum, 1e15))
    if sum > 0 then last = index + 1 end
  end
  return table.concat(counts, ' ', 1, last)
end

-- Write the hour of the record and its day to the hash. Invariant: the first hour of a day sets when the key expires.
local function store(user)
  local key, hour, day = keys.periods(user.name), user.period, math.floor(user.period / 24)
  calls.attempt('HSET', key, string.format('h%d', hour % HOURS), string.format('%d ', hour) .. pack(user, ENDED),
    string.format('d%d', day % DAYS), string.format('%d ', day) .. pack(user, ENDED, BEFORE))
  if pack(user, BEFORE) == '' then redis.call('PEXPIRE', key, numbers.exact(TTL)) end
end

-- Return the counts in a field of the hash, if they are of this hour or day; otherwise an empty list.
local function read_place(text, number)
  local counts, found, digits = {}, string.match(text or '', '^(%d+)([%d ]*)$')
  if not found or tonumber(found) ~= number then return counts end
  for count in string.gmatch(digits, '%d+') do counts[#counts + 1] = #count < 16 and tonumber(count) or 0 end
  return counts
end

local function set_count(user, field, count)
  if count ~= (user[field] or 0) then records.set(user, field, count) end
end

-- Store the past hour and begin the current one. The hash may already have counts of the current hour, if the user's
-- record was deleted or the clock was ahead.
local function begin_hour(user, hour)
  local past, day = user.period, math.floor(hour / 24)
  if past then store(user) end
  local of_hour, of_day = {}, {}
  if past and past < hour then
    if math.floor(past / 24) == day then
      for index = 0, LAST do of_day[index + 1] = (user[ENDED[index]] or 0) + (user[BEFORE[index]] or 0) end
    end
  else
    local found = calls.attempt('HMGET', keys.periods(user.name), string.format('h%d', hour % HOURS), string.format('d%d', day % DAYS)) or {}
    if not past and not (found[1] or found[2]) then return records.set(user, 'period', hour) end -- no attempt has ended before
    of_hour, of_day = read_place(found[1], hour), read_place(found[2], day)
    for i = 1, LAST + 1 do of_day[i] = math.max(0, (of_day[i] or 0) - (of_hour[i] or 0)) end
  end
  for index = 0, LAST do
    set_count(user, ENDED[index], of_hour[index + 1] or 0)
    set_count(user, BEFORE[index], of_day[index + 1] or 0)
  end
  records.set(user, 'period', hour)
end

-- Call this before the first write, for each user whose attempts may end.
function user_periods.touch(user)
  if user.period ~= present_hour() then slot.touch(keys.periods(user.name)) end
end

local function add(user, index)
  local field = ENDED[index]
  records.set(user, field, (user[field] or 0) + 1)
end

-- Begin the current hour, if the record has another one. Return whether counts can be changed.
local function prepare(user)
  local hour = present_hour()
  if user.period ~= hour and not user.is_damaged then begin_hour(user, hour) end
  return not user.is_damaged
end

-- Count an event that COUNTERS names.
function user_periods.count(user, counter)
  if prepare(user) then add(user, COUNTERS[counter]) end
end

-- Count an attempt that has ended. `counter` is 'finished', 'failed', or nil for neither, such as a Retry.
function user_periods.note_attempt(task, counter)
  local user, started = task.owner, task.started or clock.now
  if not prepare(user) then return end
  add(user, FIRST_WAIT + recent_usage.bucket_of(started - task.ready))
  if counter then add(user, COUNTERS[counter]) end
end

-- Store the last hour of a user whose record is deleted.
function user_periods.keep(user)
  if user.period then store(user) end
end

