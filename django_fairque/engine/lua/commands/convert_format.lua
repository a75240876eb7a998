#!lua flags=allow-oom
-- Convert all data of the shard to another format (engine/model/data_format.py) in this one call. No process may use
-- the data meanwhile.
--
-- This command includes no library that reads or writes data by itself, because such a library refuses data of another
-- format.
--
-- KEYS    base workers
-- ARGV    now (us) or '', options, the format to have ('' only reads), the first version of the package that uses it
-- REPLY   the format before, how many workers live, how many tasks the other format can't express (if any: nothing is changed), and
--         the workers' ids
-- COST    6 commands, and 4 for each user that can be served, and 3 for each user; on the way back 1 for each waiting task
-- include calls user_record
local wanted, version = tonumber(ARGV[3]), ARGV[4]
local FIRST_FORMAT, NEVER = 1, 9e15
local stats = redis.call('HMGET', K.stats, 'format', 'clock')
local found = tonumber(stats[1] or nil) or stats[2] and FIRST_FORMAT
if not found then return { '', 0, 0 } end
local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000000 + tonumber(time[2])
end
local function exact(number) return string.format('%.17g', number) end
local living = redis.call('ZRANGEBYSCORE', K.workers, '(' .. exact(now), '+inf', 'LIMIT', 0, 100)
if not wanted or found == wanted or #living > 0 then return { string.format('%d', found), #living, 0, unpack(living) } end

local attempt = calls.attempt -- a damaged record affects only its user or organization

local function numbers(key, ...)
  local values = attempt('HMGET', key, ...) or {}
  for i = 1, select('#', ...) do values[i] = tonumber(values[i] or nil) or 0 end
  return values
end

-- Call `change` for each ring with three arguments: the key of the ring, the key of the ring's owner (the shard's
-- counters or an organization), and a list in which entries and scores alternate.
local AS_ORGANIZATION = '\255'
local function each_ring(change)
  change(K.ring, K.stats, redis.call('ZRANGE', K.ring, 0, -1, 'WITHSCORES'))
  for _, name in ipairs(redis.call('ZRANGE', K.groups, 0, -1)) do
    local ring = P .. 'ring:' .. name
    local entries = attempt('ZRANGE', ring, 0, -1, 'WITHSCORES')
    if entries then change(ring, P .. 'group:' .. name, entries) end
  end
end
local function record_of(entry)
  if string.sub(entry, 1, 1) == AS_ORGANIZATION then return P .. 'group:' .. string.sub(entry, 2) end
  return P .. 'user:' .. entry
end

local conversions = {} -- by the higher of two formats: `up` converts from the format before it, `down` converts back

-- Workers of format 1 know no signature that covers a delay or an expiry, and would take it for a forgery. Such a
-- signature is longer than other signatures, by the lengths of time at its end.
local SEPARATOR, SIGNATURE, LONGEST = '\30', 23, 64
local function signed_spans(id)
  local tail = attempt('GETRANGE', P .. 'payload:' .. id, -LONGEST, -1) or ''
  local signature = string.match(tail, SEPARATOR .. '([^' .. SEPARATOR .. ']*)$')
  return signature and #signature > SIGNATURE
end

conversions[2] = {}

-- In format 1 a newcomer's position is just before its tag, and its record has its part of the lead in `early`. In
-- format 2 newcomers come before all tags, ordered by their arrival (`came`), and the ring's owner counts the other
-- entries in `others`.
conversions[2].up = function()
  local newest = now
  each_ring(function(ring, owner, entries)
    local others = 0
    for i = 1, #entries, 2 do
      local key = record_of(entries[i])
      local early, tag = unpack(numbers(key, 'early', 'tag'))
      if early > 0 or tonumber(entries[i + 1]) < 0 then -- a score below 0 was written by an earlier call that then failed
        newest = newest + 1
        attempt('HSET', key, 'came', exact(newest))
        redis.call('ZADD', ring, exact(newest - NEVER), entries[i])
      else
        others = others + 1
        redis.call('ZADD', ring, exact(math.max(0, tag)), entries[i])
      end
      attempt('HDEL', key, 'early')
    end
    attempt('HSET', owner, 'lead', 0, 'others', others)
    attempt('HDEL', owner, 'place')
  end)
  redis.call('HSET', K.stats, 'newest', exact(newest))
end

-- Place the newcomers at the virtual time, in their order. The other entries keep their tags, which are not lower.
conversions[2].down = function()
  each_ring(function(ring, owner, entries)
    local vtime, arrival = unpack(numbers(owner, 'vtime', 'arrival'))
    local tag = math.max(vtime, arrival)
    local _, exponent = math.frexp(math.max(tag, 2 ^ 38))
    local step = math.ldexp(1, exponent - 50)
    for i = 1, #entries, 2 do
      if tonumber(entries[i + 1]) < 0 then
        local key = record_of(entries[i])
        tag = tag + step
        attempt('HSET', key, 'tag', exact(tag))
        attempt('HDEL', key, 'came')
        redis.call('ZADD', ring, exact(tag), entries[i])
      end
    end
    attempt('HSET', owner, 'arrival', exact(tag), 'lead', 0, 'place', exact(vtime))
    attempt('HDEL', owner, 'others', 'newest')
  end)
end

conversions[2].unknown_before = function()
  local count = 0
  for _, state in ipairs({ 'scheduled', 'queued', 'deferred', 'started' }) do
    for _, id in ipairs(redis.call('ZRANGE', K['state:' .. state], 0, -1)) do
      if signed_spans(id) then count = count + 1 end
    end
  end
  return count
end

conversions[3] = {}

local function each_user(change)
  for _, name in ipairs(redis.call('ZRANGE', K.users, 0, -1)) do change(name, P .. 'user:' .. name) end
end

-- In format 2 the record of a user is a hash; in format 3 it is one string.
conversions[3].up = function()
  each_user(function(name, key)
    local user = user_record.read_hash(name, key)
    if user then redis.call('SET', key, user_record.pack(user)) end -- otherwise the record is missing, already converted, or of a wrong type
  end)
end

conversions[3].down = function()
  each_user(function(name, key)
    local text = attempt('GET', key)
    local user = text and user_record.read(name, key, text)
    if not user then return end
    local hash = P .. 'converted' -- a call that fails before RENAME has not changed the user's record
    redis.call('DEL', hash)
    redis.call('HSET', hash, 'version', 0, unpack(user_record.list(user)))
    redis.call('RENAME', hash, key)
  end)
end

conversions[3].unknown_before = function() return 0 end

for step = found, wanted + 1, -1 do
  local count = conversions[step].unknown_before()
  if count > 0 then return { string.format('%d', found), 0, count } end
end
for step = found + 1, wanted do conversions[step].up() end
for step = found, wanted + 1, -1 do conversions[step].down() end
redis.call('HSET', K.stats, 'format', string.format('%d', wanted), 'format_version', version, 'revision', '')
return { string.format('%d', found), 0, 0 }
