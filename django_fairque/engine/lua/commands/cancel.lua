#!lua flags=allow-oom
-- Cancel tasks that have not ended, and with them what depends on them (unless its policy is to run anyhow).
--
-- KEYS    base reply
-- ARGV    options, reason, n (1..1000), then n ids
-- REPLY   one digit per task: 0 unknown, 1 canceled, 2 ended before
-- COST    9 commands a task
-- include base ring organization user recent_usage task dependents removal
local stored = redis.call('GET', K.reply)
if stored then return stored end
local reason, size = ARGV[A], tonumber(ARGV[A + 1])
local codes, tasks, seen = {}, {}, {}
for i = 1, size do
  local id = ARGV[A + 1 + i]
  local t = read_task(id)
  if not t then
    codes[i] = 0
  elseif seen[id] or t.state == 'finished' or t.state == 'failed' or t.state == 'canceled' then
    codes[i] = 2
  else
    seen[id] = true
    codes[i] = 1
    t.u = load_user(t.user)
    touch_moves(t)
    if t.state == 'started' then touch(revoked_key(t.worker)) end
    tasks[#tasks + 1] = t
  end
end
if #tasks > 0 then touch_minute() end
touch_all()
for _, t in ipairs(tasks) do cancel(t, reason) end
commit()
resolve(sweep_limit)
wake_if(ring_grew)
local reply = table.concat(codes)
redis.call('SET', K.reply, reply, 'PX', reply_ttl(#reply))
flush_stats()
return reply
