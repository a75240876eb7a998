-- The start of every command: its options, the time, the shard's counters, and buffered writes. The loader puts `K`
-- (declared keys by name), `P` (the shard's prefix) and `each_call` above this. The server keeps these definitions from
-- call to call; values that belong to one call are set in an `each_call`.

local EPOCH = 1735689600000000 -- 2025-01-01 in microseconds: a stamp counts from here
local BAND = 1e15              -- one priority's room in a normal queue's score; a stamp fits until 2056
local NEVER = 9e15             -- a moment that does not come (2255), still an exact integer in a double
local CHUNK = 1000             -- most members in one variadic command (unpack fails at 8000)

-- The options of the queue: one argument of words, the same from call to call, so it is read when it has changed.
local fair_by_tasks, head_start, max_deliveries, result_ttl, failed_ttl, user_ttl, minute_ttl, sweep_limit, max_backlog, max_backlog_bytes
local default_sla, at_risk, starves_after -- by priority; 0: it never starves; priorities 1 to 3
local is_spread -- the queue has other shards
local reply_ttl, least_ttl
do

local read = false
each_call(function()
  local options = ARGV[2]
  if options == read then return end
  local words, n = {}, 0
  for word in string.gmatch(options, '%S+') do
    n = n + 1
    words[n] = n == 1 and word or tonumber(word)
  end
  fair_by_tasks = words[1] == 'tasks'
  head_start, max_deliveries, result_ttl, failed_ttl, user_ttl, minute_ttl, sweep_limit, max_backlog = unpack(words, 2, 9)
  default_sla, at_risk, starves_after = { unpack(words, 10, 15) }, words[16], { unpack(words, 17, 19) }
  is_spread, max_backlog_bytes, least_ttl = words[20] == 1, words[21], words[22]
  read = options
end)

end
local FIRST_ARG = 3 -- the command's own arguments start here
local MOST_RESOLVED = 50 -- dependents in one call, which takes 2 ms (measured with 100,000 dependents of one task)

-- A number as a text, exact for integers below 2^53: Lua's own conversion keeps only 14 digits. Most numbers are whole
-- and take the conversion that costs half as much.
local function exact(number)
  if number % 1 == 0 and number < 9e15 and number > -9e15 then return string.format('%d', number) end
  return string.format('%.17g', number)
end

-- A number for a command. The server converts it itself, exactly and in a fifth of the time. But before Redis 7.4 a whole number
-- with eight zeros at its end becomes 1e+8, which is a score, but no whole number for `HINCRBY` and for those who read a record.
local function argument(number)
  if number == 0 then return 0 end -- many fields are; and -0 is no whole number for `HINCRBY`
  return number % 1e8 == 0 and exact(number) or number
end

-- A damaged key or number costs its user or its task, and nobody else. `attempt` makes one call on a key that belongs to one
-- user, organization or task, and returns nil if that key is of another type than the queue writes: nothing is changed then. `number`
-- reads a number of a record: nil for a text that is none, and for one that no moment or sum reaches.
local function attempt(command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if type(reply) ~= 'table' or not reply.err then return reply end
  if string.sub(reply.err, 1, 9) ~= 'WRONGTYPE' then return redis.call(command, key, ...) end -- raises the error again
  return nil
end
local function number(text)
  local found = tonumber(text)
  return found and found > -1e24 and found < 1e24 and found or nil
end
local function refuse_damaged(key)
  error({ err = 'WRONGTYPE ' .. key .. ' is not of the type that the queue writes; fairque_check names such keys' })
end

local function task_key(id) return P .. 'task:' .. id end
local function payload_key(id) return P .. 'payload:' .. id end
local function history_key(id) return P .. 'history:' .. id end
local function user_key(user_name) return P .. 'user:' .. user_name end
local function normal_key(user_name) return P .. 'queue:user:' .. user_name .. ':normal' end
local function critical_key(user_name) return P .. 'queue:user:' .. user_name .. ':critical' end
local function scheduled_key(user_name) return P .. 'queue:user:' .. user_name .. ':scheduled' end
local function leases_key(worker) return P .. 'leases:' .. worker end
local function revoked_key(worker) return P .. 'revoked:' .. worker end
local function waiting_key(id) return P .. 'deps:waiting:' .. id end
local function blocked_key(id) return P .. 'deps:blocked:' .. id end
local function reacting_key(id) return P .. 'deps:reacting:' .. id end
local function first_key(id) return P .. 'deps:first:' .. id end
local function remote_key(id) return P .. 'remote:' .. id end
local function watchers_key(id) return P .. 'deps:remote:' .. id end
local function run_key(run) return P .. 'run:' .. run end
local function delivered_key(id) return P .. 'delivered:' .. id end
local function unique_key(user_name, key) return P .. 'unique:' .. #user_name .. ':' .. user_name .. ':' .. key end

local stat, now, now_text
local stat_changed, stat_added = {}, {}
local is_given -- by the caller: of a moment that somebody gave nothing follows for the server's clock
local counters = {} -- in one table: a script has room for 200 names
do -- counters and the engine's time

-- The shard's counters. The counters named here are read at once and written back at once; any other counter is only
-- added to.
--
-- Reading and converting them takes a quarter of the time of a push of one task, so a function keeps them until its
-- next call, with their `revision`. Each write sets the revision, in the same command, to a text that no other write
-- uses. If the revision on the server is the kept one, nothing was written since.
local STATS = {
  'revision', -- a text, all others are numbers
  'clock', 'token', 'stamp', 'arrival', 'vtime', 'lead', 'newest', 'others', 'active', 'mean', 'look', 'paused',
  'depth:1', 'depth:2', 'depth:3', 'depth:4', 'depth:5', 'depth:6',
  'pushed', 'started', 'finished', 'retried', 'spared', 'given', 'groups', 'behind', 'quarantine', 'resolve_turn',
  'replies', 'replies_before', 'replies_in', 'active_users', 'hour', 'recent:0', 'recent:1',
  'lease', 'heartbeat', 'signed', 'sampled', 'sla_violated', 'format',
}
local KEPT = 100 -- shards
local kept, size = {}, 0 -- by the key of the counters
local key -- of the counters of this call, or of the call before
-- `last_write` is higher than the numbers of all revisions that this function has read or written, and `origin` names the function:
-- after a failover two servers may go on from the same revision.
local last_write, origin = 0, nil

local function forget_stats()
  if kept[key] then kept[key], size = nil, size - 1 end
end

local function keep_stats()
  if kept[key] then return end
  if size == KEPT then kept, size = {}, 0 end
  kept[key], size = stat, size + 1
end

-- Read the first `last` counters of the queue, or all.
local function read(last) return redis.call('HMGET', key, unpack(STATS, 1, last)) end

function counters.read()
  if next(stat_changed) then -- the call before has failed
    forget_stats()
    stat_changed = {}
  end
  if next(stat_added) then stat_added = {} end -- most tables stay empty in most calls, so they are not made again
  key = K.stats
  stat = kept[key]
  if not stat or read(1)[1] ~= stat.revision then counters.read_again() end
end

-- The format of the data (engine/model/data_format.py). A function compares it when something else has written since its last call, so it
-- costs no command. Data without a number have the first format, and a shard without data has none.
local function check_format()
  local found = stat.format > 0 and stat.format or stat.clock > 0 and 1 or frame.format
  if found ~= frame.format then
    local version = redis.call('HGET', key, 'format_version') or ''
    error({ err = string.format('FORMAT %d %s', found, version) })
  end
end

-- Also what others have written, who set no revision.
function counters.read_again()
  forget_stats()
  local values = read()
  stat = { revision = values[1] or '' }
  for i = 2, #STATS do stat[STATS[i]] = tonumber(values[i] or 0) or 0 end
  local other_write = tonumber(string.match(stat.revision, '^%d+')) or 0
  check_format()
  if other_write < 2 ^ 52 then last_write = math.max(last_write, other_write) end
  if stat.revision ~= '' then keep_stats() end
end

-- In one command, so that no other revision has these counters.
function counters.write()
  last_write = last_write + 1
  origin = origin or tostring({}) .. ':' .. now_text
  local revision = string.format('%d:%s', last_write, origin)
  local values, n = { 'revision', revision }, 2
  if stat.format == 0 then
    stat.format = frame.format
    values, n = { 'revision', revision, 'format', stat.format, 'format_version', frame.format_version }, 6
  end
  for field in pairs(stat_changed) do
    local value = stat[field]
    if value % 1e8 == 0 then value = argument(value) end
    values[n + 1], values[n + 2] = field, value
    n = n + 2
  end
  redis.call('HSET', key, unpack(values))
  stat.revision = revision
  keep_stats()
end

-- The server's clock was set forward, or for so long nobody has called: leases keep what was left of them. Each is spared
-- once until it is renewed (`spared`: the end of the last one that was), so one that nobody renews lasts twice at most.
--
-- While a worker lives, somebody calls at least as often as it sends heartbeats, three times in a lease. So if there was a heartbeat
-- within half a lease before the last call, and then no call for half a lease, it was the clock: a lease that is renewed has two
-- thirds of its length left at a heartbeat's latest, and outlives any smaller step. If it was not (all workers died or were cut off at
-- once), their tasks wait for once more what was left of their leases.
local STEP = 120e6
local function is_step(step)
  if step >= STEP then return true end
  local half = stat.lease / 2
  return half > 0 and step >= half and stat.clock - stat.heartbeat <= half
end
local function spare_leases(time)
  local step = time - stat.clock
  if stat.clock == 0 or not is_step(step) then return end
  forget_stats()
  local started = P .. 'state:started' -- not all commands declare it
  local first, moved = '(' .. exact(math.max(stat.clock, stat.spared)), {}
  local ends = redis.call('ZRANGEBYSCORE', started, first, '+inf', 'WITHSCORES')
  for i = 1, #ends, 2 do
    stat.spared = tonumber(ends[i + 1]) + step
    moved[i], moved[i + 1] = exact(stat.spared), ends[i]
  end
  redis.call('HSET', K.stats, 'revision', '', 'spared', exact(stat.spared)) -- first: what is moved is never moved again
  for i = 1, #moved, CHUNK do
    redis.call('ZADD', started, unpack(moved, i, math.min(i + CHUNK - 1, #moved)))
  end
  stat.clock = time
  redis.call('HSET', K.stats, 'revision', '', 'clock', exact(time))
end

-- The server's clock was ahead and is set right. A step of up to a minute is waited out: time stands still until the clock has
-- caught up. A larger one is believed, and what was counted from the engine's own time (ends of leases, held users, when
-- other shards are asked again, delays, pauses before retries) keeps what was left of it. Moments that were given, as
-- `execute_after`, stay.
local BACK = 60e6
-- Not all commands declare them; clients that may push may write them.
local COUNTED = { 'state:started', 'throttled', 'mirrors' }
local MOST_RETRIES = 10000 -- and delayed tasks that are looked for, among the next tasks that are due
local function move(list, time, moved)
  local step = time - math.min(stat.clock, NEVER)
  for i = 1, #list, 2 do
    moved[#moved + 1] = exact(math.max(time, tonumber(list[i + 1]) + step))
    moved[#moved + 1] = list[i]
  end
  return moved
end
local function set_back(time)
  forget_stats()
  local scheduled, found, retries = P .. 'state:scheduled', {}, {}
  for i, name in ipairs(COUNTED) do
    found[i] = move(redis.call('ZRANGE', P .. name, 0, -1, 'WITHSCORES'), time, {})
  end
  local due = redis.call('ZRANGEBYSCORE', scheduled, exact(time), '+inf', 'WITHSCORES', 'LIMIT', 0, MOST_RETRIES)
  for i = 1, #due, 2 do
    local known = attempt('HMGET', task_key(due[i]), 'done', 'user', 'delay')
    local user_name = known and (known[1] or known[3]) and (known[2] or heads.read(attempt('GETRANGE', payload_key(due[i]), 0, heads.MOST - 1)).user)
    if user_name then
      move({ due[i], due[i + 1] }, time, retries)
      retries[#retries + 1] = user_name
      redis.call('EXISTS', scheduled_key(user_name), P .. 'due')
    end
  end
  for i, name in ipairs(COUNTED) do
    for first = 1, #found[i], CHUNK do
      redis.call('ZADD', P .. name, unpack(found[i], first, math.min(first + CHUNK - 1, #found[i])))
    end
  end
  for i = 1, #retries, 3 do
    local moment, id, user_name = retries[i], retries[i + 1], retries[i + 2]
    redis.call('HSET', task_key(id), 'due', moment)
    redis.call('ZADD', scheduled, moment, id)
    attempt('ZADD', scheduled_key(user_name), moment, id)
    redis.call('ZADD', P .. 'due', 'LT', moment, user_name)
  end
  stat.spared = math.max(0, stat.spared + time - math.min(stat.clock, NEVER))
  stat.clock, stat.look = time, time
  redis.call('HSET', K.stats, 'revision', '', 'clock', exact(time), 'look', exact(time), 'spared', exact(stat.spared))
end

each_call(function()
  counters.read()
  now = tonumber(ARGV[1])
  is_given = now ~= nil
  if not now then
    local time = redis.call('TIME')
    now = tonumber(time[1]) * 1000000 + tonumber(time[2])
    if stat.clock - now > BACK and stat.given == 0 then set_back(now) else spare_leases(now) end
  end
  now = math.max(now, stat.clock) -- but for such a step the engine's time never goes back
  now_text = exact(now)
end)

end

local function set_stat(field, value)
  stat[field] = value
  stat_changed[field] = true
end

local function count(field, amount)
  if stat[field] then
    set_stat(field, stat[field] + amount)
  else
    stat_added[field] = (stat_added[field] or 0) + amount
  end
end

do

-- Replies are recorded for two minutes, or for less if they would take more memory than this: but for twice as long as a call is
-- repeated (`least_ttl`). `replies` counts their bytes in periods of ten seconds, this one and the one before.
local LONGEST, MOST_BYTES, PERIOD, OVERHEAD = 120e6, 32e6, 10e6, 200
function reply_ttl(size)
  local period = math.floor(now / PERIOD)
  if stat.replies_in ~= period then
    set_stat('replies_before', stat.replies_in == period - 1 and stat.replies or 0)
    set_stat('replies_in', period)
    set_stat('replies', 0)
  end
  set_stat('replies', stat.replies + size + OVERHEAD)
  local affordable = MOST_BYTES / math.max(stat.replies, stat.replies_before) * PERIOD
  return string.format('%d', math.max(least_ttl, math.min(LONGEST, affordable)) / 1000)
end

end

-- `look` is never later than the earliest moment at which anything must be looked at.
local function look_at(moment)
  if stat.look == 0 or moment < stat.look then set_stat('look', moment) end
end

-- A derived key that moved away with its slot aborts a script at its first use: so every derived key that will
-- be written is used once before the first write, all of them in one command.
local touch, touch_all
do

local touched = {}
each_call(function()
  if touched[1] then touched = {} end
end)
function touch(key) touched[#touched + 1] = key end
function touch_all()
  for first = 1, #touched, CHUNK do
    redis.call('EXISTS', unpack(touched, first, math.min(first + CHUNK - 1, #touched)))
  end
  if touched[1] then touched = {} end
end

end

-- Per-minute figures. The key is derived, so a command that will count touches it.
local minute_key
local tallies = {}
each_call(function()
  minute_key = nil
  if next(tallies) then tallies = {} end
end)
local function touch_minute()
  if minute_key then return end
  minute_key = P .. 'stats:' .. exact(math.floor(now / 60000000))
  touch(minute_key)
end
local function tally(field, amount) tallies[field] = (tallies[field] or 0) + amount end

-- Histogram buckets a quarter of an octave wide: percentiles are right to 9 %.
local histogram = {} -- in one table: a script has room for 200 names
do

local OCTAVE = 0.69314718055994531 -- ln 2: nothing can be computed while a library is loaded
function histogram.bucket(microseconds) return math.floor(4 * math.log(math.max(1, microseconds)) / OCTAVE) end

-- A duration into the minute's histogram and into the one since the first task, which is never forgotten. A call counts by bucket, and
-- names the fields when it writes.
local INSIDE = 1 + 1e-9 -- so far inside the bounds of a bucket that rounding does not matter
local observed = {}
each_call(function()
  if next(observed) then observed = {} end
end)
local function note_bucket(seen)
  if seen.times > 0 then seen.buckets[seen.index], seen.times = (seen.buckets[seen.index] or 0) + seen.times, 0 end
end
function histogram.observe(kind, microseconds, in_minute)
  local seen = observed[in_minute]
  if not seen then
    seen = { kind = kind, sum = 0, buckets = {}, index = 0, times = 0, least = 0, most = -1 }
    observed[in_minute] = seen
  end
  seen.sum = seen.sum + microseconds
  if microseconds < seen.least or microseconds > seen.most then -- in another bucket than the last one
    note_bucket(seen)
    local index = histogram.bucket(microseconds)
    seen.index, seen.least, seen.most = index, INSIDE * 2 ^ (index / 4), 2 ^ ((index + 1) / 4) / INSIDE
  end
  seen.times = seen.times + 1
end
function histogram.count()
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

end

-- Buffered writes: many members of one key in one command, additions before removals, so that a prefix of the
-- writes leaves an entry twice (which is found and fixed), never nowhere.
local added_to, zadd, zrem, sadd, srem, flush
do

local function kind_of_write(command) return { command = command, lists = {}, order = {} } end -- `order`: the keys with a list
local additions, set_additions = kind_of_write('ZADD'), kind_of_write('SADD')
local removals, set_removals = kind_of_write('ZREM'), kind_of_write('SREM')
local KINDS = { additions, set_additions, removals, set_removals }
local function begin_list(kind, key)
  local list, order = {}, kind.order
  kind.lists[key], order[#order + 1] = list, key
  return list
end
function added_to(key) return additions.lists[key] or begin_list(additions, key) end
function zadd(key, score, member)
  local list = additions.lists[key] or begin_list(additions, key)
  local n = #list
  list[n + 1], list[n + 2] = score, member
end
function zrem(key, member)
  local list = removals.lists[key] or begin_list(removals, key)
  list[#list + 1] = member
end
function sadd(key, member)
  local list = set_additions.lists[key] or begin_list(set_additions, key)
  list[#list + 1] = member
end
function srem(key, member)
  local list = set_removals.lists[key] or begin_list(set_removals, key)
  list[#list + 1] = member
end
-- Whether a key belongs to one user, organization or task, and not to the whole shard or to a worker.
local function is_of_one(key)
  local kind = string.match(key, '^(%l+):', #P + 1)
  return kind and kind ~= 'state' and kind ~= 'leases'
end
local function forget_writes(kind) kind.lists, kind.order = {}, {} end
local function flush_kind(kind)
  local command, lists, order = kind.command, kind.lists, kind.order
  for i = 1, #order do
    local key = order[i]
    local list = lists[key]
    for first = 1, #list, CHUNK do
      local last = math.min(first + CHUNK - 1, #list)
      if not attempt(command, key, unpack(list, first, last)) and not is_of_one(key) then
        redis.call(command, key, unpack(list, first, last)) -- raises the error again
      end
    end
  end
  for i = #order, 1, -1 do lists[order[i]], order[i] = nil, nil end -- not before all is written: a write can fail
end
function flush()
  for _, kind in ipairs(KINDS) do
    if kind.order[1] then flush_kind(kind) end
  end
end
each_call(function()
  for _, kind in ipairs(KINDS) do
    if kind.order[1] then forget_writes(kind) end -- a call that failed has left something
  end
end)

end

local function flush_stats()
  histogram.count()
  if next(tallies) then
    touch_minute()
    local is_first = false -- of its kind in this minute; to ask whether the minute is there would be one more command for all
    for field, amount in pairs(tallies) do
      is_first = redis.call('HINCRBY', minute_key, field, argument(amount)) == amount or is_first
    end
    if is_first then redis.call('PEXPIRE', minute_key, exact(minute_ttl / 1000)) end
    tallies = {}
  end
  for field, amount in pairs(stat_added) do redis.call('HINCRBY', K.stats, field, argument(amount)) end
  if now > stat.clock then
    set_stat('clock', now)
    if is_given ~= (stat.given == 1) then set_stat('given', is_given and 1 or 0) end
  end
  if next(stat_changed) then counters.write() end
  stat_changed = {}
  if next(stat_added) then stat_added = {} end
end

-- Lists of byte strings in one string and back ("3:abc0:..."): binary safe, nothing to escape.
local function pack(list)
  local parts = {}
  for i = 1, #list do -- no string is made for a part: that took as long as handing out its task
    parts[3 * i - 2], parts[3 * i - 1], parts[3 * i] = #list[i], ':', list[i]
  end
  return table.concat(parts)
end
local function unpack_list(text)
  local list, at = {}, 1
  while at <= #text do
    local colon = string.find(text, ':', at, true)
    local size = tonumber(string.sub(text, at, colon - 1))
    if size < 0 then error('expected a packed list, got a part of ' .. size .. ' bytes') end -- it would lead back for ever
    list[#list + 1] = string.sub(text, colon + 1, colon + size)
    at = colon + size + 1
  end
  return list
end

local alert
do

-- An alert for operators. Workers fetch alerts; if no worker does, the oldest are dropped.
local MOST_ALERTS = 10000
function alert(kind, task, detail) -- a text or a number
  detail = type(detail) == 'number' and exact(detail) or detail
  redis.call('RPUSH', K.alerts, pack({ now_text, kind, task.id, task.user, task.raw.name or '', exact(task.priority), detail }))
  redis.call('LTRIM', K.alerts, -MOST_ALERTS, -1)
end

end

-- A message for another shard: a worker of the queue carries it there, and it stays until that is done. `field` says
-- what it is, so that the same message is there once.
local posted
each_call(function() posted = false end)
local function post(field, body)
  redis.call('HSET', K.outbox, field, body)
  posted = true
end

local function post_once(field, body) -- it keeps the moment at which it was posted first
  redis.call('HSETNX', K.outbox, field, body)
  posted = true
end

local remember
do

local HISTORY = 25 -- attempts kept per task

-- One line of a task's history, which Python reads as an `Attempt`. `ran` is the task if an attempt ended: the line then has
-- since when the task was ready, and when it was started.
function remember(id, kind, worker, err, trace, ran)
  local line = { now_text, kind, worker or '', err or '', trace or '' }
  if ran and ran.started then line[6], line[7] = exact(ran.ready or ran.started), exact(ran.started) end
  attempt('RPUSH', history_key(id), pack(line))
  attempt('LTRIM', history_key(id), -HISTORY, -1)
end

end
