-- The recent usage of a user: figures of the current clock hour and the previous one, in its record. The figures are
-- written when tasks start and end. The shard's counters have the worker time of all users in the same two hours, so
-- that a user's part of it can be computed.
--
-- `hour` is the hour in which the record was last changed. `recent:0` and `recent:1` are the worker time of even and
-- odd hours; `recent:0:7` is how many tasks started in an even hour after a wait in bucket 7. When an hour begins, its
-- fields still hold values that are two hours old, and are set to 0 (removing them would be one more command).
-- engine/statistics/queue_stats.py reads these fields.
--
-- include counters clock records

local recent_usage = {}

local set = records.set -- a local alias, which Lua finds faster: this function is called often

local HOUR = 3600e6
local FIRST_WAIT = 10e3 -- bucket 0 is for waits below 10 ms; each following bucket is three times as wide
local LAST_BUCKET = 15  -- the last bucket is for waits of 13 hours and more

local WORKED, WAITED = {}, {}
for half = 0, 1 do
  WORKED[half], WAITED[half] = 'recent:' .. half, {}
  for index = 0, LAST_BUCKET do WAITED[half][index] = WORKED[half] .. ':' .. index end
end

local function empty(user, half)
  if user[WORKED[half]] then set(user, WORKED[half], 0) end
  for index = 0, LAST_BUCKET do
    if user[WAITED[half][index]] then set(user, WAITED[half][index], 0) end
  end
end

local function half_of(user, hour)
  local half = hour % 2
  if user.hour ~= hour then
    if user.hour then
      empty(user, half)
      if hour - user.hour ~= 1 then empty(user, 1 - half) end -- the record is hours old, or from a clock that was ahead
    end
    set(user, 'hour', hour)
  end
  return half
end

local function note_work_of_all(microseconds, hour)
  local shard, half = counters.shard, hour % 2
  if shard.hour ~= hour then
    counters.set(WORKED[half], 0)
    if hour - shard.hour ~= 1 then counters.set(WORKED[1 - half], 0) end
    counters.set('hour', hour)
  end
  counters.set(WORKED[half], shard[WORKED[half]] + microseconds)
end

function recent_usage.note_work(user, microseconds)
  if microseconds == 0 then return end
  local hour = math.floor(clock.now / HOUR)
  local field = WORKED[half_of(user, hour)]
  set(user, field, (user[field] or 0) + microseconds)
  note_work_of_all(microseconds, hour)
end

local index, least, edge = 0, 0, FIRST_WAIT -- the bucket of the last wait, because the next wait is often in the same bucket
function recent_usage.bucket_of(microseconds)
  if microseconds < least or microseconds >= edge then
    index, least, edge = 0, 0, FIRST_WAIT
    while microseconds >= edge and index < LAST_BUCKET do
      index, least, edge = index + 1, edge, edge * 3
    end
  end
  return index
end

function recent_usage.note_wait(user, microseconds)
  local field = WAITED[half_of(user, math.floor(clock.now / HOUR))][recent_usage.bucket_of(microseconds)]
  set(user, field, (user[field] or 0) + 1)
end
