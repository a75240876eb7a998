-- Figures of a user by hour and by UTC day, for its page and for reports. Counted when attempts end.
--
-- The record's field `period` has the present hour: its number, its counts, and behind a bar the counts of the day before this hour. So a call that
-- ends tasks of a user reads and writes nothing but the record. When an hour ends, its counts and those of its day go to the hash
-- `periods:{user}`, which ends by itself: `h0` to `h47` and `d0` to `d34`, each with the number of its hour or day, as a place is used again.
-- Counts are whole numbers in the order of COUNTERS, then waits by bucket (lib/recent_usage.lua); zeros at the end are left out.
-- engine/users/history.py reads them.
--
-- include numbers calls keys clock slot records deadlines recent_usage

local user_periods = {}

local HOUR, HOURS, DAYS, TTL = 3600e6, 48, 35, 36 * 86400e3
local COUNTERS, FIRST_WAIT, SIZE = { finished = 1, failed = 2, dead = 3, kept = 4, missed = 5 }, 6, 21

local function read_counts(text)
  local counts = {}
  for digits in string.gmatch(text, '%d+') do counts[#counts + 1] = #digits < 16 and tonumber(digits) or 0 end
  for i = #counts + 1, SIZE do counts[i] = 0 end
  return counts
end

-- Without the zeros at the end.
local function pack(counts) return (string.gsub(table.concat(counts, ' ', 1, SIZE), ' ?%f[%d]0[ 0]*$', '')) end

local function add_counts(counts, others, sign)
  for i = 1, SIZE do counts[i] = math.max(0, counts[i] + sign * others[i]) end
  return counts
end

local function present_hour() return math.floor(clock.now / HOUR) end

-- Read the field of the record, unless the function has kept what is in it. Nil without one.
local function read_period(user)
  if user.kept_period and user.kept_period.text == user.period then return user.kept_period end
  local hour, counts, before = string.match(user.period or '', '^(%d+)([%d ]*)|([%d ]*)$')
  return hour and #hour < 10 and { hour = tonumber(hour), counts = read_counts(counts), before = read_counts(before), before_text = before } or nil -- else it is damaged
end

-- The counts of a place of the hash, if they are of this hour or day.
local function read_place(text, number)
  local found, counts = string.match(text or '', '^(%d+)([%d ]*)$')
  return read_counts(found and tonumber(found) == number and counts or '')
end

-- Write a past hour, if there is one, and its day to the hash. Invariant: the first hour of a day sets when the key ends.
local function store(user, period)
  if not period then return end
  local key, hour, day = keys.periods(user.name), period.hour, math.floor(period.hour / 24)
  calls.attempt('HSET', key, string.format('h%d', hour % HOURS), string.format('%d ', hour) .. pack(period.counts),
    string.format('d%d', day % DAYS), string.format('%d ', day) .. pack(add_counts(period.before, period.counts, 1)))
  if period.before_text == '' then redis.call('PEXPIRE', key, numbers.exact(TTL)) end
end

-- Store the past hour and return the present one. The hash may have it, if the user was forgotten or the clock was ahead.
local function begin_hour(user, past, hour)
  store(user, past)
  local day = math.floor(hour / 24)
  if past and past.hour < hour then
    return { hour = hour, counts = read_counts(''), before = math.floor(past.hour / 24) == day and past.before or read_counts('') }
  end
  local found = calls.attempt('HMGET', keys.periods(user.name), string.format('h%d', hour % HOURS), string.format('d%d', day % DAYS)) or {}
  local counts = read_place(found[1], hour)
  return { hour = hour, counts = counts, before = add_counts(read_place(found[2], day), counts, -1) }
end

-- Call it before the first write, for each user of which attempts may end.
function user_periods.touch(user)
  if tonumber(string.match(user.period or '', '^%d+')) ~= present_hour() then slot.touch(keys.periods(user.name)) end
end

-- Count one of COUNTERS, or a wait by its index.
function user_periods.count(user, counter)
  local sums, index = user.period_sums or read_counts(''), COUNTERS[counter] or counter
  sums[index] = sums[index] + 1
  user.period_sums, user.changed.period = sums, true
end

-- An attempt has ended: finished, failed or (nil) neither, such as a Retry.
function user_periods.note_attempt(task, counter)
  local user, started = task.owner, task.started or clock.now
  if counter then user_periods.count(user, counter) end
  user_periods.count(user, started > deadlines.to_start(task) and 'missed' or 'kept')
  user_periods.count(user, FIRST_WAIT + recent_usage.bucket_of(started - task.ready))
end

-- Add what the call has counted to the record. Invariant: once in a call, before the record is written.
function user_periods.apply(user)
  local sums = user.period_sums
  user.period_sums = nil
  if not sums or user.is_damaged then return end
  local hour, period = present_hour(), read_period(user)
  if not (period and period.hour == hour) then period = begin_hour(user, period, hour) end
  period.before_text = period.before_text or pack(period.before)
  add_counts(period.counts, sums, 1)
  period.text = string.format('%d ', hour) .. pack(period.counts) .. '|' .. period.before_text
  user.kept_period = period
  records.set(user, 'period', period.text)
end

-- Store the last hour of a user whose record is removed.
function user_periods.keep(user) store(user, read_period(user)) end
