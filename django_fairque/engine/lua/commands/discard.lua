#!lua flags=allow-oom
-- Give dead letters up: FAILED becomes CANCELED, and so does what depends on them (unless its policy is to run anyhow).
--
-- KEYS    base reply
-- ARGV    options, n (1..1000), then n × (id, how many times it had died)
-- REPLY   one digit per entry: 0 no such dead letter (any more), 1 discarded
-- COST    5 commands an entry
-- include base ring organization user recent_usage task dependents
local stored = redis.call('GET', K.reply)
if stored then return stored end
local size, codes, tasks, seen = tonumber(ARGV[A]), {}, {}, {}
for i = 1, size do
  local id = ARGV[A + 2 * i - 1]
  local t = not seen[id] and read_task(id)
  codes[i] = t and t.state == 'failed' and t.died == tonumber(ARGV[A + 2 * i]) and 1 or 0
  if codes[i] == 1 then
    seen[id] = true -- not of an old letter: it may stand before the present one
    touch(history_key(t.id))
    if t.waited then t.u = load_user(t.user) end
    tasks[#tasks + 1] = t
  end
end
touch_all()
for _, t in ipairs(tasks) do
  remember(t.id, 'discarded', '', '', '')
  to_ended(t, 'canceled', result_ttl)
  zrem(K['state:failed'], t.id)
  count('lying:' .. (t.raw.failure or 'failed'), -1)
  count('discarded', 1)
end
commit()
resolve(sweep_limit)
wake_if(ring_grew)
local reply = table.concat(codes)
redis.call('SET', K.reply, reply, 'PX', reply_ttl(#reply))
flush_stats()
return reply
