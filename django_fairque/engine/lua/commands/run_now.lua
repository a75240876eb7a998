#!lua flags=allow-oom
-- Tasks that wait for their time, or for others, stop waiting: SCHEDULED ones become QUEUED now; DEFERRED ones depend on
-- nothing any more, and become what they would have become when their dependencies had finished.
--
-- KEYS    base reply
-- ARGV    options, the state that they are taken from (scheduled or deferred), n (1..1000), then n ids
-- REPLY   one digit per task: 0 unknown, 1 hastened, 2 not in that state (any more)
-- COST    10 commands a task, and 3 for each of its dependencies
-- include base ring organization user recent_usage task dependents
local stored = redis.call('GET', K.reply)
if stored then return stored end
local state, size = ARGV[A], tonumber(ARGV[A + 1])
local codes, tasks, seen = {}, {}, {}
for i = 1, size do
  local id = ARGV[A + 1 + i]
  local t = read_task(id)
  if not t then
    codes[i] = 0
  elseif seen[id] or t.state ~= state then
    codes[i] = 2
  else
    seen[id] = true
    codes[i] = 1
    t.u = load_user(t.user)
    touch_moves(t)
    tasks[#tasks + 1] = t
  end
end
if #tasks > 0 then touch_minute() end
touch_all()
for _, t in ipairs(tasks) do
  leave_waiting(t.u, t)
  if state == 'scheduled' then
    redis.call('HSET', task_key(t.id), 'due', now_text)
    t.raw.due = now_text
  end
  go_on(t)
end
commit()
wake_if(ring_grew)
local reply = table.concat(codes)
redis.call('SET', K.reply, reply, 'PX', reply_ttl(#reply))
flush_stats()
return reply
