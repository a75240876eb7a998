#!lua flags=allow-oom
-- A worker lives: lengthen all its leases, record it, and send it its last command and which of its tasks were canceled.
--
-- The canceled tasks of a reply are kept: reported only once, they would be lost with a lost reply, and their tasks run on.
--
-- KEYS    base reply workers worker leases revoked
-- ARGV    options, worker, lease (us), how long its record is kept (us), whether it runs signed tasks only (1 or 0; '' says nothing), n,
--         then n × (field, value)
-- REPLY   leases renewed, the last command ('' for none) and when it was sent (us), the shard's epoch (us: when its first
--         heartbeat was), the last token, now (us), the server's run id, then `token:id` of the canceled leases (at most 1000
--         a call)
-- COST    12 commands, 2 more when tasks were canceled; its leases are as many as the worker has fetched
-- include base
local worker, lease, ttl = ARGV[FIRST_ARG], tonumber(ARGV[FIRST_ARG + 1]), tonumber(ARGV[FIRST_ARG + 2])
local ids = redis.call('SMEMBERS', K.leases)
local command = redis.call('HMGET', K.worker, 'command', 'commanded')
local epoch = redis.call('HGET', K.stats, 'epoch')
if not epoch then
  epoch = now_text -- of data that is gone nothing is known, so another one means that they are
  set_stat('epoch', now)
end
local server = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)') or ''
local stored = redis.call('GET', K.reply)
local revoked = stored and unpack_list(stored) or redis.call('SRANDMEMBER', K.revoked, CHUNK)
if not stored and #revoked > 0 then
  redis.call('SET', K.reply, pack(revoked), 'PX', 120000)
  redis.call('SREM', K.revoked, unpack(revoked))
end
for first = 1, #ids, CHUNK do
  local moments = redis.call('ZMSCORE', K['state:started'], unpack(ids, first, math.min(first + CHUNK - 1, #ids)))
  for i, moment in ipairs(moments) do
    if moment then zadd(K['state:started'], now + lease, ids[first + i - 1]) end
  end
end
zadd(K.workers, now + ttl, worker)
flush()
local fields = { 'id', worker, 'seen', exact(now), 'leases', #ids }
for i = 1, 2 * tonumber(ARGV[FIRST_ARG + 4]) do fields[6 + i] = ARGV[FIRST_ARG + 4 + i] end
redis.call('HSET', K.worker, unpack(fields))
redis.call('PEXPIRE', K.worker, exact(math.ceil(ttl / 1000)))
-- The shortest lease of those that workers have renewed in the last minute: a longer one counts when that has not been renewed for a minute.
if stat.lease == 0 or lease <= stat.lease or math.abs(now - stat.heartbeat) > 60e6 then
  set_stat('lease', lease)
  set_stat('heartbeat', now)
end
-- Pushes without a signature are refused from the first such heartbeat on, also while no worker lives, until only workers that take
-- them have sent heartbeats for as long as a record is kept.
local signing = ARGV[FIRST_ARG + 3]
if signing == '1' then
  set_stat('signed', now)
elseif signing == '0' and stat.signed > 0 and math.abs(now - stat.signed) > ttl then
  set_stat('signed', 0)
end
flush_stats()
return { #ids, command[1] or '', command[2] or '0', epoch, exact(stat.token), now_text, server, unpack(revoked) }
