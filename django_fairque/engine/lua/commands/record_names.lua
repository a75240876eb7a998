#!lua flags=allow-oom
-- Add to this hour's figures of task names: attempts that ended, those that failed, and run times by bucket.
--
-- KEYS    base reply
-- ARGV    options, n, then n × (name, m, then m × (kind, amount))
-- REPLY   1
-- COST    4 commands, 3 a name and 1 a figure
-- include slot task_names
if redis.call('GET', K.reply) then return 1 end
local at = FIRST_ARG + 1
task_names.touch()
slot.touch_all()
for _ = 1, tonumber(ARGV[FIRST_ARG]) do
  local last = at + 1 + 2 * tonumber(ARGV[at + 1])
  task_names.add(ARGV[at], { unpack(ARGV, at + 2, last) })
  at = last + 1
end
redis.call('SET', K.reply, '1', 'PX', 120000)
return 1
