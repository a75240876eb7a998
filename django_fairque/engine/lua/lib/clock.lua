-- The engine's time. A change of the server's clock ends no lease. The engine's time goes back only if the clock was
-- set back by more than a minute.
--
-- Each command includes this library. At each call it reads the shard's counters and refuses data of another format.
--
-- include heads numbers calls keys counters

local clock = {}

local CHUNK = calls.CHUNK

clock.EPOCH = 1735689600000000 -- 2025-01-01 in microseconds; stamps count from here
clock.NEVER = 9e15             -- a moment that never comes (in 2255), still an exact integer in a double

-- The server's clock was set forward, or no call came for a long time. Every lease then gets back the time that it had
-- left at the last call. Until a lease is renewed this happens only once (`spared` is the end of the last such lease),
-- so a lease that is never renewed lasts at most twice as long.
--
-- While a worker runs, the server receives a call at least with each heartbeat, which is three times in the length of a
-- lease. So if a heartbeat came within half a lease before the last call, and then no call came for half a lease, the
-- clock was changed. A smaller step ends no lease, because a renewed lease has two thirds of its length left at the
-- next heartbeat. If the clock was not changed (all workers died or were cut off at once), their tasks wait for the
-- remaining time of their leases once more.
local STEP = 120e6
local function is_step(step)
  if step >= STEP then return true end
  local half = counters.shard.lease / 2
  return half > 0 and step >= half and counters.shard.clock - counters.shard.heartbeat <= half
end
local function spare_leases(time)
  local step = time - counters.shard.clock
  if counters.shard.clock == 0 or not is_step(step) then return end
  counters.forget()
  local started = P .. 'state:started' -- not all commands declare this key
  local first, moved = '(' .. numbers.exact(math.max(counters.shard.clock, counters.shard.spared)), {}
  local ends = redis.call('ZRANGEBYSCORE', started, first, '+inf', 'WITHSCORES')
  for i = 1, #ends, 2 do
    counters.shard.spared = tonumber(ends[i + 1]) + step
    moved[i], moved[i + 1] = numbers.exact(counters.shard.spared), ends[i]
  end
  redis.call('HSET', K.stats, 'revision', '', 'spared', numbers.exact(counters.shard.spared)) -- written before the leases, so that no lease is extended twice
  for i = 1, #moved, CHUNK do
    redis.call('ZADD', started, unpack(moved, i, math.min(i + CHUNK - 1, #moved)))
  end
  counters.shard.clock = time
  redis.call('HSET', K.stats, 'revision', '', 'clock', numbers.exact(time))
end

-- The server's clock was ahead and was set right. After a step back of up to a minute, the engine's time stands still
-- until the clock has caught up. After a larger step the engine's time goes back too. Moments that were computed from
-- the engine's time then keep their distance: ends of leases, held users, the next check of tasks on other shards,
-- delays, and pauses before retries. Moments that a caller gave, such as `execute_after`, stay.
local BACK = 60e6
-- The sorted sets whose scores were computed from the engine's time, and move back with it. Their names are derived here, because not
-- all commands that set the time back have them among their KEYS.
local COUNTED = { 'state:started', 'throttled', 'mirrors' }
local MOST_RETRIES = 10000 -- the number of next due tasks that are examined for retries and delays
local function move(list, time, moved)
  local step = time - math.min(counters.shard.clock, clock.NEVER)
  for i = 1, #list, 2 do
    moved[#moved + 1] = numbers.exact(math.max(time, tonumber(list[i + 1]) + step))
    moved[#moved + 1] = list[i]
  end
  return moved
end
local function set_back(time)
  counters.forget()
  local scheduled, found, retries = P .. 'state:scheduled', {}, {}
  for i, name in ipairs(COUNTED) do
    found[i] = move(redis.call('ZRANGE', P .. name, 0, -1, 'WITHSCORES'), time, {})
  end
  local due = redis.call('ZRANGEBYSCORE', scheduled, numbers.exact(time), '+inf', 'WITHSCORES', 'LIMIT', 0, MOST_RETRIES)
  for i = 1, #due, 2 do
    local known = calls.attempt('HMGET', keys.task(due[i]), 'done', 'user', 'delay')
    local user_name = known and (known[1] or known[3]) and (known[2] or heads.read(calls.attempt('GETRANGE', keys.payload(due[i]), 0, heads.MOST - 1)).user)
    if user_name then
      move({ due[i], due[i + 1] }, time, retries)
      retries[#retries + 1] = user_name
      redis.call('EXISTS', keys.scheduled(user_name), P .. 'due')
    end
  end
  for i, name in ipairs(COUNTED) do
    for first = 1, #found[i], CHUNK do
      redis.call('ZADD', P .. name, unpack(found[i], first, math.min(first + CHUNK - 1, #found[i])))
    end
  end
  for i = 1, #retries, 3 do
    local moment, id, user_name = retries[i], retries[i + 1], retries[i + 2]
    redis.call('HSET', keys.task(id), 'due', moment)
    redis.call('ZADD', scheduled, moment, id)
    calls.attempt('ZADD', keys.scheduled(user_name), moment, id)
    redis.call('ZADD', P .. 'due', 'LT', moment, user_name)
  end
  counters.shard.spared = math.max(0, counters.shard.spared + time - math.min(counters.shard.clock, clock.NEVER))
  counters.shard.clock, counters.shard.look = time, time
  redis.call('HSET', K.stats, 'revision', '', 'clock', numbers.exact(time), 'look', numbers.exact(time), 'spared', numbers.exact(counters.shard.spared))
end

each_call(function()
  counters.read()
  local now = tonumber(ARGV[1])
  clock.is_given = now ~= nil
  if not now then
    local time = redis.call('TIME')
    now = tonumber(time[1]) * 1000000 + tonumber(time[2])
    if counters.shard.clock - now > BACK and counters.shard.given == 0 then set_back(now) else spare_leases(now) end
  end
  now = math.max(now, counters.shard.clock) -- the engine's time goes back only in `set_back`
  clock.now, clock.now_text = now, numbers.exact(now)
end)
