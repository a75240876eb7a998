#!lua flags=allow-oom
-- Record the heartbeat of a worker: extend all its leases, and return its last command and those of its tasks that were
-- canceled.
--
-- The canceled tasks of a reply are stored, and a repeated call returns them again. Otherwise these tasks would run on
-- if the reply was lost.
--
-- The field `code_version` names the version of the project's code. A version is deployed when a worker reports it and
-- no worker has reported it for as long as a worker's record is kept. The same version is not deployed twice in a row.
-- A process keeps its code: a version counts only if the worker's previous heartbeat, if there was one, had the same
-- version.
--
-- KEYS    base reply workers worker leases revoked
-- ARGV    options, worker, lease (us), how long its record is kept (us), whether it runs signed tasks only (1 or 0; '' says nothing), n,
--         then n × (field, value)
-- REPLY   leases renewed, the last command ('' for none) and when it was sent (us), the shard's epoch (us: when its first
--         heartbeat was), the last token, now (us), the server's run id, then `token:id` of the canceled leases (at most 1000
--         a call)
-- COST    12 commands, 2 more with a code version, at most 7 when it is deployed, 2 more when tasks were canceled; its leases are as
--         many as the worker has fetched
-- include numbers calls lists counters clock statistics writes
local MAX_VERSION_BYTES, KEPT_VERSIONS = 100, 50
local LOST_KEPT_MS = 86400e3 -- the record of a lost worker is kept for this time (lib/lost_workers.lua)
local worker, lease, ttl = ARGV[FIRST_ARG], tonumber(ARGV[FIRST_ARG + 1]), tonumber(ARGV[FIRST_ARG + 2])
local ids = redis.call('SMEMBERS', K.leases)
local command = redis.call('HMGET', K.worker, 'command', 'commanded', 'code_version')
local fields = { 'id', worker, 'seen', numbers.exact(clock.now), 'leases', #ids }
local code_version
for i = 1, 2 * tonumber(ARGV[FIRST_ARG + 4]), 2 do
  local field, value = ARGV[FIRST_ARG + 4 + i], ARGV[FIRST_ARG + 5 + i]
  if field == 'code_version' then
    value = string.sub(value, 1, MAX_VERSION_BYTES)
    if value ~= '' and value == (command[3] or value) then code_version = value end
  end
  fields[6 + i], fields[7 + i] = field, value
end
local versions, deployments = P .. 'code_versions', P .. 'deployments'
local reported_at, is_deployed -- `reported_at`: the moment at which a worker last reported this version
if code_version then
  reported_at = tonumber(calls.attempt('ZSCORE', versions, code_version) or 0)
  if math.abs(clock.now - reported_at) > math.max(ttl, lease) then
    local last = calls.attempt('LINDEX', deployments, -1)
    is_deployed = string.match(last or '', ' (.*)') ~= code_version
  end
end
local epoch = redis.call('HGET', K.stats, 'epoch')
if not epoch then
  epoch = clock.now_text -- a worker that sees another epoch knows that the earlier data of the shard is gone
  counters.set('epoch', clock.now)
end
local server = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)') or ''
local stored = redis.call('GET', K.reply)
local revoked = stored and lists.unpack(stored) or redis.call('SRANDMEMBER', K.revoked, calls.CHUNK)
if not stored and #revoked > 0 then
  redis.call('SET', K.reply, lists.pack(revoked), 'PX', 120000)
  redis.call('SREM', K.revoked, unpack(revoked))
end
for first = 1, #ids, calls.CHUNK do
  local moments = redis.call('ZMSCORE', K['state:started'], unpack(ids, first, math.min(first + calls.CHUNK - 1, #ids)))
  for i, moment in ipairs(moments) do
    if moment then writes.zadd(K['state:started'], clock.now + lease, ids[first + i - 1]) end
  end
end
writes.zadd(K.workers, clock.now + ttl, worker)
writes.flush()
redis.call('HSET', K.worker, unpack(fields))
redis.call('PEXPIRE', K.worker, numbers.exact(math.ceil(ttl / 1000 + LOST_KEPT_MS)))
if is_deployed then
  calls.attempt('RPUSH', deployments, clock.now_text .. ' ' .. code_version)
  calls.attempt('LTRIM', deployments, -KEPT_VERSIONS, -1)
end
if code_version and math.abs(clock.now - reported_at) > ttl / 4 then
  calls.attempt('ZADD', versions, clock.now_text, code_version)
  local oldest = reported_at == 0 and calls.attempt('ZRANGE', versions, 0, -KEPT_VERSIONS - 1)
  if oldest and #oldest > 0 then calls.attempt('ZREM', versions, unpack(oldest, 1, math.min(#oldest, calls.CHUNK))) end
end
-- The shard's `lease` is the shortest lease that workers have renewed in the last minute. A longer lease replaces it
-- when the shortest one has not been renewed for a minute.
if counters.shard.lease == 0 or lease <= counters.shard.lease or math.abs(clock.now - counters.shard.heartbeat) > 60e6 then
  counters.set('lease', lease)
  counters.set('heartbeat', clock.now)
end
-- From the first heartbeat of a worker that runs only signed tasks, pushes without a signature are refused, also while
-- no worker runs. Such pushes are accepted again when, for as long as a worker's record is kept, only workers that
-- accept unsigned tasks have sent heartbeats.
local signing = ARGV[FIRST_ARG + 3]
if signing == '1' then
  counters.set('signed', clock.now)
elseif signing == '0' and counters.shard.signed > 0 and math.abs(clock.now - counters.shard.signed) > ttl then
  counters.set('signed', 0)
end
statistics.flush()
return { #ids, command[1] or '', command[2] or '0', epoch, numbers.exact(counters.shard.token), clock.now_text, server, unpack(revoked) }
