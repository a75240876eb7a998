#!lua flags=allow-oom
-- Move a lease to another worker: it stays the same lease with the same token, and is renewed and given back with those of that
-- worker.
--
-- KEYS    base leases
-- ARGV    options, id, token, worker that takes it over, lease (us)
-- REPLY   now (us), then the end of the lease and its values as pop.lua; nothing else if it is not the task's current one
-- COST    9 commands
-- include heads base ring organization recent_usage user bounds task dependents due_work list_credit select_next fetch
local id, token, worker = ARGV[FIRST_ARG], tonumber(ARGV[FIRST_ARG + 1]), ARGV[FIRST_ARG + 2]
local lease_end = now + tonumber(ARGV[FIRST_ARG + 3])
local task = read_task(id)
if not (task and task.state == 'started' and task.token == token) then return { now_text } end
touch_lease(task)
touch_all()
local payload = redis.call('GET', payload_key(id))
zadd(K['state:started'], lease_end, id)
sadd(K.leases, id)
flush()
redis.call('HSET', task.key, 'worker', worker)
if task.worker ~= worker then srem(leases_key(task.worker), id) end
commit()
local reply = { now_text }
append_leases(reply, { task }, { heads.payload_in(payload) }, lease_end)
return reply
