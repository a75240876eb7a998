-- Counters of ended attempts by task name: totals since the first task, and run times by hour.
--
-- `stats:attempts` has two counters for each name: of attempts that failed, and of all other attempts, which passed.
-- `stats:attempts:{hour}` counts the same attempts by the bucket of their run time. `stats:attempts:names` has the
-- latest hour of each name. At most 100 names are kept; attempts of further names count under the empty name. A name
-- without attempts for longer than hours are kept makes room for a new one.
--
-- include numbers clock slot releases

local task_names = {}

local MOST, KEPT = 100, 26 -- the number of names, and of hours: a day, the current hour, and one more
local noted = {} -- by result and name
each_call(function()
  if next(noted) then noted = {} end
end)

local function key_of_totals() return P .. 'stats:attempts' end
local function key_of_names() return P .. 'stats:attempts:names' end
local function present_hour() return math.floor(clock.now / 3600e6) end
local function key_of_hour() return P .. 'stats:attempts:' .. numbers.exact(present_hour()) end

-- Call this before the first write, if attempts may end.
function task_names.touch()
  slot.touch(key_of_totals())
  slot.touch(key_of_names())
  slot.touch(key_of_hour())
  releases.touch()
end

-- Note an attempt that has ended and was closed (`leases.close`). `commit` writes it. `release`: see `releases.note`.
function task_names.note(task, has_failed, release)
  releases.note(task, has_failed, release)
  local result, name = has_failed and 'failed' or 'passed', task.name or ''
  local field = result .. ':' .. name
  local found = noted[field]
  if not found then
    found = { result = result, name = name, attempts = 0, buckets = {} }
    noted[field] = found
  end
  local bucket = math.floor(task.run_bucket / 2) -- half an octave wide
  found.attempts, found.buckets[bucket] = found.attempts + 1, (found.buckets[bucket] or 0) + 1
end

local function make_room()
  local found, old, fields = redis.call('HGETALL', key_of_names()), {}, {}
  for i = 1, #found, 2 do
    if tonumber(found[i + 1]) < present_hour() - KEPT then
      old[#old + 1] = found[i]
      fields[#fields + 1], fields[#fields + 2] = 'passed:' .. found[i], 'failed:' .. found[i]
    end
  end
  if #old == 0 then return false end
  redis.call('HDEL', key_of_totals(), unpack(fields))
  redis.call('HDEL', key_of_names(), unpack(old))
  releases.forget(old)
  return true
end

local function is_kept(name)
  return name == '' or redis.call('HEXISTS', key_of_names(), name) == 1 or redis.call('HLEN', key_of_names()) < MOST or make_room()
end

-- Count the attempts, and return the name under which they count. Only the first attempt of a name checks whether there
-- is room for the name.
local function count(result, name, attempts)
  local field = result .. ':' .. name
  if redis.call('HINCRBY', key_of_totals(), field, attempts) ~= attempts or is_kept(name) then return name end
  redis.call('HDEL', key_of_totals(), field)
  return count(result, '', attempts)
end

function task_names.flush()
  if not next(noted) then return end
  local is_kept = {}
  for _, found in pairs(noted) do
    local name = count(found.result, found.name, found.attempts)
    is_kept[name] = name ~= ''
    for bucket, attempts in pairs(found.buckets) do
      local field = table.concat({ found.result, numbers.exact(bucket), name }, ':') -- `string.format` would cut off a name at a zero byte
      if redis.call('HINCRBY', key_of_hour(), field, attempts) == attempts then
        redis.call('PEXPIRE', key_of_hour(), KEPT * 3600000)
        if name ~= '' then redis.call('HSET', key_of_names(), name, numbers.exact(present_hour())) end
      end
    end
  end
  releases.flush(is_kept)
  noted = {}
end
