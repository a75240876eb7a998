#!lua flags=allow-oom
-- Start an act on many tasks, change its state, hand out the size of its next step, record outcomes of its tasks, or let its data expire.
--
-- KEYS    base
-- ARGV    options, part, id, and then of the part:
--         start: fields and values
--         change: the states that it may be in, 1 if workers go on with it, then fields and values
--         claim: the largest step
--         note: turn, cursor, how many tasks were looked at, n, those n of them whose outcome is open, then fields and amounts
--         close: nothing
-- REPLY   start: 1, or 0 if there are 100 acts with which workers go on; change: 1, or the present state; claim: how many tasks the step may change;
--         note and close: 1
-- COST    10 commands, and of start 2 for each act that is forgotten
-- include numbers counters clock slot statistics acts
local KEPT, MOST, PAUSE = 86400e6, 100, 2e6
local id, act = ARGV[FIRST_ARG + 1], acts.read(FIRST_ARG + 1)
local index, key, first = P .. 'acts', P .. 'act:' .. id, FIRST_ARG + 2
local never = numbers.exact(clock.NEVER)

local parts, count_open, file = {}, nil, nil

function parts.start()
  if redis.call('EXISTS', key) == 1 then return 1 end -- the call is repeated
  local ended = redis.call('ZRANGEBYSCORE', index, '-inf', numbers.exact(clock.now - KEPT))
  local oldest = redis.call('ZRANGE', index, 0, 0, 'WITHSCORES')
  if #ended == 0 and redis.call('ZCARD', index) >= MOST then
    if tonumber(oldest[2]) >= clock.NEVER then return 0 end
    ended = { oldest[1] }
  end
  for _, old in ipairs(ended) do
    redis.call('ZREM', index, old)
    redis.call('DEL', P .. 'act:' .. old)
  end
  redis.call('HSET', key, 'started', clock.now_text, 'claimed', clock.now_text, unpack(ARGV, first))
  file(true)
  return 1
end

function count_open() -- Sweeps report whether an act has work to do.
  counters.set('acts', redis.call('ZCOUNT', index, never, never))
  statistics.flush()
end

function file(is_open)
  redis.call('ZADD', index, is_open and never or clock.now_text, id)
  if is_open then redis.call('PERSIST', key) else redis.call('PEXPIRE', key, numbers.exact(KEPT / 1000)) end
  count_open()
end

function parts.change()
  local state = redis.call('HGET', key, 'state')
  if not state then redis.call('ZREM', index, id) end -- the record is gone
  if not state or not string.find(' ' .. ARGV[first] .. ' ', ' ' .. state .. ' ', 1, true) then
    count_open()
    return state or ''
  end
  redis.call('HSET', key, 'ended', clock.now_text, 'claimed', clock.now_text, unpack(ARGV, first + 2))
  file(ARGV[first + 1] == '1')
  return 1
end

function parts.claim()
  local most, values = tonumber(ARGV[first]), redis.call('HMGET', key, 'pace', 'claimed')
  local pace = tonumber(values[1] or 0)
  if not pace then return most end
  -- A step uses at most two seconds of the pace, even if no worker took a step for longer.
  local waited = math.min(clock.now - (tonumber(values[2]) or clock.now), math.max(PAUSE, 1e6 / pace))
  local size = math.min(most, math.floor(waited * pace / 1e6 + 1e-6))
  if size > 0 then redis.call('HSET', key, 'claimed', numbers.exact(math.floor(clock.now - waited + size / pace * 1e6))) end
  return size
end

function parts.note()
  local looked_at, size = ARGV[first + 2], tonumber(ARGV[first + 3])
  if act.is_late then return 1 end
  redis.call('LTRIM', act.tasks, looked_at, -1)
  acts.append(act, { unpack(ARGV, first + 4, first + 3 + size) })
  acts.save(act, { unpack(ARGV, first + 4 + size) })
  return 1
end

function parts.close()
  acts.keep(act, KEPT / 1000)
  return 1
end

slot.touch(index)
slot.touch(key)
slot.touch_all()
return parts[ARGV[FIRST_ARG]]()
