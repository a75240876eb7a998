#!lua flags=allow-oom
-- Move a lease to another worker. The lease keeps its token, and is renewed and given back with the other leases of
-- that worker.
--
-- KEYS    base leases
-- ARGV    options, id, token, worker that takes it over, lease (us)
-- REPLY   now (us), then the end of the lease and its values as pop.lua; nothing else if it is not the task's current one
-- COST    9 commands
-- include heads keys clock slot writes saving task_record moves fetch runs
local id, token, worker = ARGV[FIRST_ARG], tonumber(ARGV[FIRST_ARG + 1]), ARGV[FIRST_ARG + 2]
local lease_end = clock.now + tonumber(ARGV[FIRST_ARG + 3])
local task = task_record.read(id)
if not (task and task.state == 'started' and task.token == token) then return { clock.now_text } end
moves.touch_lease(task)
slot.touch_all()
local payload = redis.call('GET', keys.payload(id))
writes.zadd(K['state:started'], lease_end, id)
writes.sadd(K.leases, id)
writes.flush()
redis.call('HSET', task.key, 'worker', worker)
runs.forget(task.key)
if task.worker ~= worker then writes.srem(keys.leases(task.worker), id) end
saving.commit()
local reply = { clock.now_text }
fetch.append_leases(reply, { task }, { heads.payload_in(payload) }, lease_end)
return reply
