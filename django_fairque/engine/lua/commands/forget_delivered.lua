#!lua flags=allow-oom
-- Shorten the time for which the delivery of an outbox's tasks is remembered. Their rows are deleted, so no process can
-- send them again.
--
-- KEYS    stats
-- ARGV    options, how long it is still remembered (us), n (1..1000), then n ids
-- REPLY   how many were remembered
-- COST    1 command a task
-- include numbers keys clock
local left = numbers.exact(math.ceil(tonumber(ARGV[FIRST_ARG]) / 1000))
local known = 0
for i = 1, tonumber(ARGV[FIRST_ARG + 1]) do
  known = known + redis.call('PEXPIRE', keys.delivered(ARGV[FIRST_ARG + 1 + i]), left, 'LT')
end
return known
