#!lua
-- Dead letters get another chance: FAILED becomes QUEUED, with a fresh retry budget, keeping its history.
--
-- KEYS    base reply
-- ARGV    options, n (1..1000), then n × (id, how many times it had died, has a new payload (0/1), payload)
-- REPLY   one digit per entry: 0 no such dead letter (any more), 1 requeued
-- COST    8 commands an entry
-- include base ring organization user recent_usage task
local stored = redis.call('GET', K.reply)
if stored then return stored end
local size, codes, tasks, seen = tonumber(ARGV[A]), {}, {}, {}
for i = 1, size do
  local at = A + 1 + (i - 1) * 4
  local t = not seen[ARGV[at]] and read_task(ARGV[at])
  codes[i] = t and t.state == 'failed' and t.died == tonumber(ARGV[at + 1]) and 1 or 0
  if codes[i] == 1 then
    seen[ARGV[at]] = true -- not of an old letter: it may stand before the present one
    t.u = load_user(t.user)
    if ARGV[at + 2] == '1' then t.payload = ARGV[at + 3] end
    local limited = t.u.max_bytes or max_backlog_bytes > 0
    if limited then t.size = (t.payload and #t.payload or redis.call('STRLEN', payload_key(t.id))) + 500 end
    touch(payload_key(t.id))
    touch_moves(t)
    tasks[#tasks + 1] = t
  end
end
touch_all()
for _, t in ipairs(tasks) do
  if t.payload then redis.call('SET', payload_key(t.id), t.payload) end
  remember(t.id, 'requeued', '', '', '')
  set_stat('stamp', math.max(now - EPOCH, stat.stamp + 1))
  t.ready = EPOCH + stat.stamp
  t.raw.told = nil
  t.expires = nil -- its moment has passed or may pass again: whoever requeues wants it run
  -- First what it is no more: left over in a queued task, a moment that has passed would end it again.
  redis.call('HDEL', task_key(t.id), 'expires', 'failure', 'reason', 'ended', 'due', 'told',
    'immediate')
  if t.size then
    redis.call('HSET', t.key, 'size', exact(t.size))
    add(t.u, 'bytes', t.size)
  end
  to_queued(t.u, t, false, 'retries', 0, 'deliveries', 0, 'token', 0)
  zrem(K['state:failed'], t.id)
  count('lying:' .. (t.raw.failure or 'failed'), -1)
  count('requeued', 1)
end
commit()
wake_if(ring_grew)
local reply = table.concat(codes)
redis.call('SET', K.reply, reply, 'PX', reply_ttl(#reply))
flush_stats()
return reply
