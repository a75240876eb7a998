#!lua flags=allow-oom
-- Decide which version of the project's code provides the declared schedules. The shard that keeps the versions
-- decides; other shards are notified of the decision (`note`).
--
-- The version that was deployed last provides the schedules. A version is deployed when a worker that starts reports it
-- for the first time. An earlier version provides them again when no worker of the current version is left, or when an
-- operator adopts the earlier version. Each time, the version gets a higher number, by default the current time.
-- `schedule.lua` refuses changes with a lower number, so a slow worker of an older version changes nothing.
--
-- KEYS    base schedules:versions schedules:workers
-- ARGV    options, action (start, renew or leave of a worker; adopt; note), version, worker ('' for none), for `note` the number of the
--         version, else how long the worker counts as running (us)
-- REPLY   the number of the version that counts ('0': none does), this version
-- COST    6 commands, 2 more for a new version, and 1 for a version that does not count
-- include numbers calls clock
local CURRENT = '' -- the field that holds the number and the name of the current version
local KEPT_VERSIONS, KEPT_FOR, SEEN_EVERY, RESTART = 50, 30 * 86400e6, 3600e6, 3e6
local action, version, worker, amount = ARGV[FIRST_ARG], ARGV[FIRST_ARG + 1], ARGV[FIRST_ARG + 2], tonumber(ARGV[FIRST_ARG + 3])
local versions, workers = K['schedules:versions'], K['schedules:workers']
local found = redis.call('HMGET', versions, CURRENT, version)
local current_number, current = string.match(found[1] or '', '^(%d+) (.*)$')
current_number = tonumber(current_number or 0)
if action == 'note' then
  if amount > current_number then
    redis.call('HSET', versions, CURRENT, numbers.exact(amount) .. ' ' .. version)
    current_number, current = amount, version
  end
  return { numbers.exact(current_number), current or '' }
end
local number_of, seen_at = string.match(found[2] or '', '^(%d+) (%d+)$')
number_of, seen_at = tonumber(number_of), tonumber(seen_at)

-- Return whether this version is the newest version that has running workers.
local function is_newest_running()
  local running = {}
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', workers, '(' .. clock.now_text, '+inf')) do
    running[string.match(member, '^(.-)%z')] = true
  end
  running[version] = nil
  if running[current] then return false end
  local fields = redis.call('HGETALL', versions)
  for i = 1, #fields, 2 do
    local other = tonumber(string.match(fields[i + 1], '^%d+'))
    if running[fields[i]] and other > (number_of or 0) then return false end
  end
  return true
end

local member = version .. '\0' .. worker
local ends = tonumber(redis.call('ZSCORE', workers, member) or 0) -- the moment at which the worker stops counting as running
local begins = false
if action == 'leave' then
  begins = false
elseif not current or action == 'adopt' then
  begins = version ~= current
elseif version ~= current then
  -- After an outage of the server no worker counts as running. A worker must report once before its version may replace
  -- the current one.
  local has_reported = action == 'start' or ends > clock.now
  begins = action == 'start' and not number_of or has_reported and is_newest_running()
end

if action == 'leave' then
  -- A worker that stops counts as running for 3 more seconds, because it may restart at once.
  if ends > clock.now + RESTART then redis.call('ZADD', workers, numbers.exact(clock.now + RESTART), member) end
  return { numbers.exact(current_number), current or '' }
end
if worker ~= '' then redis.call('ZADD', workers, numbers.exact(clock.now + amount), member) end
if begins then
  current_number, current = math.max(current_number + 1, clock.now), version
  redis.call('HSET', versions, CURRENT, numbers.exact(current_number) .. ' ' .. version)
end
if begins or not number_of or clock.now - seen_at > SEEN_EVERY then
  redis.call('HSET', versions, version, numbers.exact(begins and current_number or number_of or 0) .. ' ' .. clock.now_text)
end
local gone = redis.call('ZRANGEBYSCORE', workers, '-inf', clock.now_text, 'LIMIT', 0, calls.CHUNK)
if #gone > 0 then redis.call('ZREM', workers, unpack(gone)) end
if not number_of then
  local fields, others = redis.call('HGETALL', versions), {}
  for i = 1, #fields, 2 do
    if fields[i] ~= CURRENT and fields[i] ~= current and fields[i] ~= version then
      others[#others + 1] = { fields[i], tonumber(string.match(fields[i + 1], ' (%d+)$') or 0) }
    end
  end
  table.sort(others, function(a, b) return a[2] > b[2] end)
  for i, other in ipairs(others) do
    if i > KEPT_VERSIONS - 2 or clock.now - other[2] > KEPT_FOR then redis.call('HDEL', versions, other[1]) end
  end
end
return { numbers.exact(current_number), current }
