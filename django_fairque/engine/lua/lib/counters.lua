-- The counters of the shard. A call reads the counters in `STATS` together, and writes those that changed together. To
-- any other counter, a call only adds.
--
-- Reading and converting the counters takes a quarter of the time of a push of one task, so a function of the server
-- keeps the counters in memory until its next call, with their `revision`. Each write sets the revision, in the same
-- command, to a text that no other write uses. If the server still has the same revision, no counter was written since.
--
-- include numbers

local counters = {}

local argument = numbers.argument -- a local alias, which Lua finds faster: this function is called often

local shard -- also `counters.shard`, because other libraries read and set its fields

local STATS = {
  'revision', -- `revision` is a text; all other counters are numbers
  'clock', 'token', 'stamp', 'arrival', 'vtime', 'lead', 'newest', 'others', 'active', 'mean', 'look', 'paused',
  'depth:0', 'depth:1', 'depth:2', 'depth:3', 'depth:4', 'depth:5', 'depth:6', 'depth:7',
  'running', 'running:urgent', 'running:bulk', 'started:urgent', 'started:bulk', 'owed:normal', 'owed:bulk',
  'pushed', 'started', 'finished', 'retried', 'spared', 'given', 'groups', 'behind', 'quarantine', 'resolve_turn',
  'replies', 'replies_before', 'replies_in', 'active_users', 'hour', 'recent:0', 'recent:1',
  'lease', 'heartbeat', 'signed', 'sampled', 'sla_violated', 'format', 'reserved', 'limited', 'parked', 'limit_turn',
  'guaranteed', 'guarantee_clock', 'incidents', 'acts', 'failed', 'run:sum', 'wait:sum', 'wait_urgent:sum', 'wait_bulk:sum',
  'sla_kept:urgent', 'sla_kept:normal', 'sla_kept:bulk', 'sla_missed:urgent', 'sla_missed:normal', 'sla_missed:bulk',
}
local KEPT = 100 -- the largest number of shards whose counters are kept
local kept, size = {}, 0 -- by the key of the counters
local key -- the key of the counters in this call, or in the previous one.
-- `last_write` is at least as high as the numbers of all revisions that this function has read or written. `origin`
-- identifies the function, because after a failover two servers may continue from the same revision.
local last_write, origin = 0, nil

function counters.forget()
  if kept[key] then kept[key], size = nil, size - 1 end
end

local function keep_stats()
  if kept[key] then return end
  if size == KEPT then kept, size = {}, 0 end
  kept[key], size = shard, size + 1
end

-- Read the first `last` counters of `STATS`, or all of them.
local function read(last) return redis.call('HMGET', key, unpack(STATS, 1, last)) end

local changed, added = {}, {}

function counters.read()
  if next(changed) then -- a previous call that failed may have left changes
    counters.forget()
    changed = {}
  end
  if next(added) then added = {} end -- most calls leave this table empty, and a new table costs time
  key = K.stats
  shard = kept[key]
  if not shard or read(1)[1] ~= shard.revision then return counters.read_again() end
  counters.shard = shard
end

-- Compare the format of the data (engine/model/data_format.py) with that of this release. The comparison needs no
-- command: a function of the server makes it only after another function has written, when it reads the counters
-- anyway. Data without a number are of the first format. A shard without data has no format.
local function check_format()
  local found = shard.format > 0 and shard.format or shard.clock > 0 and 1 or frame.format
  if found ~= frame.format then
    local version = redis.call('HGET', key, 'format_version') or ''
    error({ err = string.format('FORMAT %d %s', found, version) })
  end
end

-- Read all counters from the server, including counters that were written without a revision.
function counters.read_again()
  counters.forget()
  local values = read()
  shard = { revision = values[1] or '' }
  for i = 2, #STATS do shard[STATS[i]] = tonumber(values[i] or 0) or 0 end
  local other_write = tonumber(string.match(shard.revision, '^%d+')) or 0
  check_format()
  if other_write < 2 ^ 52 then last_write = math.max(last_write, other_write) end
  if shard.revision ~= '' then keep_stats() end
  counters.shard = shard
end

local written = { 'revision' } -- arguments of `HSET`; calls share this table, so its end may contain values of an earlier call

-- Write the changed counters and the revision in one command, so that no other revision has these counters.
local function write(moment)
  last_write = last_write + 1
  origin = origin or tostring({}) .. ':' .. moment
  local revision = string.format('%d:%s', last_write, origin)
  written[2] = revision
  local n = 2
  if shard.format == 0 then
    shard.format = frame.format
    written[3], written[4], written[5], written[6], n = 'format', shard.format, 'format_version', frame.format_version, 6
  end
  for field in next, changed do
    local value = shard[field]
    if value % 1e8 == 0 then value = argument(value) end
    written[n + 1], written[n + 2] = field, value
    n = n + 2
  end
  redis.call('HSET', key, unpack(written, 1, n))
  for i = 3, n, 2 do changed[written[i]] = nil end -- clear the table and keep it: a new table would grow again with each field
  shard.revision = revision
  keep_stats()
end

local function set(field, value)
  shard[field] = value
  changed[field] = true
end
counters.set = set

function counters.count(field, amount)
  if shard[field] then
    set(field, shard[field] + amount)
  else
    added[field] = (added[field] or 0) + amount
  end
end

-- Note that work is due at this moment. Invariant: `look`, the moment of the next check, is never later than the
-- earliest due moment.
function counters.note_due(moment)
  if shard.look == 0 or moment < shard.look then set('look', moment) end
end

-- Write the counters that have changed.
function counters.flush(moment)
  for field, amount in pairs(added) do redis.call('HINCRBY', K.stats, field, argument(amount)) end
  if next(changed) then write(moment) end
  if next(added) then added = {} end
end
