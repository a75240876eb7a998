#!lua flags=allow-oom
-- Give dead letters up: FAILED becomes CANCELED, and so does what depends on them (unless its policy is to run anyhow).
--
-- KEYS    base reply
-- ARGV    options, n (1..1000), then n × (id, how many times it had died)
-- REPLY   one digit per entry: 0 no such dead letter (any more), 1 discarded
-- COST    5 commands an entry
-- include heads base ring organization recent_usage user bounds task dependents
local stored = redis.call('GET', K.reply)
if stored then return stored end
local size, codes, tasks, seen = tonumber(ARGV[FIRST_ARG]), {}, {}, {}
for i = 1, size do
  local id = ARGV[FIRST_ARG + 2 * i - 1]
  local task = not seen[id] and read_task(id)
  codes[i] = task and task.state == 'failed' and task.died == tonumber(ARGV[FIRST_ARG + 2 * i]) and 1 or 0
  if codes[i] == 1 then
    seen[id] = true -- not of an old letter: it may stand before the present one
    touch(history_key(task.id))
    task.owner = load_user(task.user)
    tasks[#tasks + 1] = task
  end
end
touch_all()
for _, task in ipairs(tasks) do
  remember(task.id, 'discarded', '', '', '')
  to_ended(task, 'canceled', result_ttl)
  zrem(K['state:failed'], task.id)
  count('lying:' .. (task.raw.failure or 'failed'), -1)
  add(task.owner, 'dead', -1)
  count('discarded', 1)
end
commit()
resolve(sweep_limit)
wake_if(ring_grew)
local reply = table.concat(codes)
redis.call('SET', K.reply, reply, 'PX', reply_ttl(#reply))
flush_stats()
return reply
