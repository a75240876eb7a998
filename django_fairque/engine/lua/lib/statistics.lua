-- The figures of the current minute and the histograms. Both are written together with the counters.
--
-- include numbers options counters clock slot

local statistics = {}

local argument, count = numbers.argument, counters.count -- local aliases, which Lua finds faster: these functions are called often

-- The key of the minute's figures is a derived key, so a command that will count touches it first (`touch_minute`).
local minute_key
local tallies = {}
local observed = {} -- by histogram of the minute: the observed values
each_call(function()
  minute_key = nil
  if next(tallies) then tallies = {} end
  if next(observed) then observed = {} end
end)

function statistics.touch_minute()
  if minute_key then return end
  minute_key = P .. 'stats:' .. numbers.exact(math.floor(clock.now / 60000000))
  slot.touch(minute_key)
end
local function tally(field, amount) tallies[field] = (tallies[field] or 0) + amount end
statistics.tally = tally

-- A histogram bucket is a quarter of an octave wide, so percentiles are right to 9 %.
local OCTAVE = 0.69314718055994531 -- ln 2, as a number because nothing can be computed while a library is loaded
local function bucket(microseconds) return math.floor(4 * math.log(math.max(1, microseconds)) / OCTAVE) end
statistics.bucket = bucket

-- Count a duration in the histogram of the minute and in the histogram of all tasks, which is never deleted. A call
-- counts durations by bucket, and names the fields only when it writes. Returns the bucket.
local INSIDE = 1 + 1e-9 -- factor between a bound of a bucket and values that are in this bucket in spite of rounding
local function note_bucket(seen)
  if seen.times > 0 then seen.buckets[seen.index], seen.times = (seen.buckets[seen.index] or 0) + seen.times, 0 end
end
function statistics.observe(kind, microseconds, in_minute)
  local seen = observed[in_minute]
  if not seen then
    seen = { kind = kind, sum = 0, buckets = {}, index = 0, times = 0, least = 0, most = -1 }
    observed[in_minute] = seen
  end
  seen.sum = seen.sum + microseconds
  if microseconds < seen.least or microseconds > seen.most then -- the value is in another bucket than the previous value
    note_bucket(seen)
    local index = bucket(microseconds)
    seen.index, seen.least, seen.most = index, INSIDE * 2 ^ (index / 4), 2 ^ ((index + 1) / 4) / INSIDE
  end
  seen.times = seen.times + 1
  return seen.index
end
local function count_observed()
  for in_minute, seen in pairs(observed) do
    note_bucket(seen)
    for index, times in pairs(seen.buckets) do
      local suffix = string.format(':%d', index)
      tally(in_minute .. suffix, times)
      count(seen.kind .. suffix, times)
    end
    count(seen.kind .. ':sum', seen.sum)
  end
  if next(observed) then observed = {} end
end

local function ready_tasks()
  local sum = 0
  for class = 0, 7 do sum = sum + counters.shard['depth:' .. class] end
  return math.max(0, sum)
end

-- Write the sample of the backlog that maintenance takes once a minute. The caller has called `touch_minute`.
function statistics.sample(ready, oldest)
  redis.call('HSET', minute_key, 'ready', ready, 'oldest', oldest)
  redis.call('PEXPIRE', minute_key, numbers.exact(options.minute_ttl / 1000))
  counters.set('sampled', math.floor(clock.now / 60e6))
end

function statistics.flush()
  count_observed()
  if next(tallies) then
    statistics.touch_minute()
    local is_first = false -- whether a field is new in this minute; asking whether the minute's key exists would cost each call a command
    for field, amount in pairs(tallies) do
      is_first = redis.call('HINCRBY', minute_key, field, argument(amount)) == amount or is_first
    end
    if is_first then redis.call('PEXPIRE', minute_key, numbers.exact(options.minute_ttl / 1000)) end
    if tallies.pushed and counters.shard.sampled < math.floor(clock.now / 60e6) - 1 then -- no worker takes samples
      redis.call('HSET', minute_key, 'ready', numbers.exact(ready_tasks()))
    end
    tallies = {}
  end
  local now, shard = clock.now, counters.shard
  if now > shard.clock then
    counters.set('clock', now)
    if clock.is_given ~= (shard.given == 1) then counters.set('given', clock.is_given and 1 or 0) end
  end
  counters.flush(clock.now_text)
end
