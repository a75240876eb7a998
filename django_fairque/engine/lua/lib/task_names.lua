-- Counters by task name: of ended attempts since the first task, of their run times by hour, and of tasks by hour that
-- kept or missed their SLA.
--
-- `stats:attempts` has two counters for each name: of attempts that failed, and of all other attempts, which passed.
-- `stats:attempts:{hour}` counts the same attempts by the bucket of their run time; the lane (u, n or b) follows the
-- bucket if the task kept its SLA with this attempt. `stats:late:{hour}` counts the tasks that missed it, by cause,
-- lane, user and name. `stats:attempts:names` has the latest hour of each name. At most 100 names are kept; attempts of
-- further names count under the empty name. A name without attempts for longer than hours are kept makes room for a new
-- one.
--
-- include numbers counters clock slot queues user_periods releases sla

local task_names = {}

local MOST, KEPT = 100, 26 -- the number of names, and of hours: a day, the current hour, and one more
local MOST_LATE = 2000 -- the number of fields of late tasks in an hour; further late tasks count without their user
local LANES = { urgent = 'u', normal = 'n', bulk = 'b' }
local noted = {} -- by result and name
local late = {} -- by field without the name, and name
each_call(function()
  if next(noted) then noted = {} end
  if next(late) then late = {} end
end)

local function key_of_totals() return P .. 'stats:attempts' end
local function key_of_names() return P .. 'stats:attempts:names' end
local function present_hour() return math.floor(clock.now / 3600e6) end
local function key_of_hour() return P .. 'stats:attempts:' .. numbers.exact(present_hour()) end
local function key_of_late() return P .. 'stats:late:' .. numbers.exact(present_hour()) end

-- Call this before the first write, if attempts or tasks may end.
function task_names.touch()
  slot.touch(key_of_totals())
  slot.touch(key_of_names())
  slot.touch(key_of_hour())
  slot.touch(key_of_late())
  releases.touch()
end

local function count_sla(task)
  local outcome, lane = sla.outcome(task), queues.lane_of(task.priority)
  if not outcome then return nil, lane end
  local result = outcome == 'kept' and 'kept' or 'missed'
  user_periods.count(task.owner, result)
  counters.count('sla_' .. result .. ':' .. lane, 1)
  return outcome, lane
end

local function note_late(task, cause, lane)
  local start, name = table.concat({ cause, LANES[lane], '' }, ':'), task.name or ''
  local key = start .. #task.user .. ':' .. task.user .. name
  local found = late[key]
  if not found then
    found = { start = start, user = task.user, name = name, tasks = 0 }
    late[key] = found
  end
  found.tasks = found.tasks + 1
end

-- Note that a task ends, or is given back after it began, without an attempt that counts. `commit` writes it. Return
-- whether its SLA was counted. Invariant: the SLA of a task is counted once.
function task_names.note_sla(task)
  local outcome, lane = count_sla(task)
  if outcome then note_late(task, outcome, lane) end
  return outcome ~= nil
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
  local bucket, outcome, lane = string.format('%d', math.floor(task.run_bucket / 2)), count_sla(task) -- half an octave wide
  if outcome == 'kept' then bucket = bucket .. LANES[lane] elseif outcome then note_late(task, outcome, lane) end
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

-- Count late tasks by cause, lane, user and name. If the hour has too many combinations, the new ones count without their
-- user. A call takes a command for each combination, and a few if there are new ones.
local function count_late(has_figures)
  local key, added, values, without_user = key_of_late(), {}, {}, {}
  for _, found in pairs(late) do
    if has_figures[found.name] == nil then has_figures[found.name] = is_kept(found.name) end
    local name = has_figures[found.name] and found.name or ''
    local field = found.start .. #found.user .. ':' .. found.user .. name
    if redis.call('HINCRBY', key, field, found.tasks) == found.tasks then
      added[#added + 1] = field
      if name ~= '' then values[#values + 1], values[#values + 2] = name, numbers.exact(present_hour()) end
      local sum = found.start .. '0:' .. name
      without_user[sum] = (without_user[sum] or 0) + found.tasks
    end
  end
  if not added[1] then return end
  if redis.call('HLEN', key) > MOST_LATE then
    redis.call('HDEL', key, unpack(added))
    for field, tasks in pairs(without_user) do redis.call('HINCRBY', key, field, tasks) end
  end
  redis.call('PEXPIRE', key, KEPT * 3600000)
  if values[1] then redis.call('HSET', key_of_names(), unpack(values)) end
end

function task_names.flush()
  if not (next(noted) or next(late)) then return end
  local has_figures = {}
  for _, found in pairs(noted) do
    local name = count(found.result, found.name, found.attempts)
    has_figures[name] = name ~= ''
    for bucket, attempts in pairs(found.buckets) do
      local field = table.concat({ found.result, bucket, name }, ':') -- `string.format` would cut off a name at a zero byte
      if redis.call('HINCRBY', key_of_hour(), field, attempts) == attempts then
        redis.call('PEXPIRE', key_of_hour(), KEPT * 3600000)
        if name ~= '' then redis.call('HSET', key_of_names(), name, numbers.exact(present_hour())) end
      end
    end
  end
  count_late(has_figures)
  releases.flush(has_figures)
  noted, late = {}, {}
end
