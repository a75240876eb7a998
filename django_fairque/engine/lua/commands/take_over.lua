#!lua flags=allow-oom
-- Move a lease to another worker: it stays the same lease with the same token, and is renewed and given back with those of that
-- worker.
--
-- KEYS    base leases
-- ARGV    options, id, token, worker that takes it over, lease (us)
-- REPLY   now (us), then the 19 values of the lease (`LEASE_FIELDS`); nothing else if it is not the task's current one
-- COST    9 commands
-- include base ring organization user recent_usage task dependents due_work list_credit select_next fetch
local id, token, worker = ARGV[A], tonumber(ARGV[A + 1]), ARGV[A + 2]
local lease_end = now + tonumber(ARGV[A + 3])
local t = read_task(id)
if not (t and t.state == 'started' and t.token == token) then return { now_text } end
touch_lease(t)
touch_all()
local payload = redis.call('GET', payload_key(id))
zadd(K['state:started'], lease_end, id)
sadd(K.leases, id)
flush()
redis.call('HSET', t.key, 'worker', worker)
if t.worker ~= worker then srem(leases_key(t.worker), id) end
commit()
local reply = { now_text }
append_lease(reply, t, payload, exact(lease_end))
return reply
