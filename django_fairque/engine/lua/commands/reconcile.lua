#!lua flags=allow-oom
-- Give back all leases of a worker except those that the call names. The tasks of the leases that are given back have
-- not begun, or the worker does not know of them.
--
-- The returned tasks do not count as delivered. A repeated call does nothing. Otherwise a repeated call that arrives
-- late would give back tasks that the worker has fetched since.
--
-- KEYS    base reply leases
-- ARGV    options, worker, reason, limit (1..1000), n, then the n tokens that it keeps
-- REPLY   leases given back, 1 if there may be more
-- COST    4 commands, 1 for each lease that the worker holds (as many as it has fetched), 10 more for each that is given back
-- include numbers lists clock slot statistics writes ring users queues saving task_record moves leases
local worker, reason, limit = ARGV[FIRST_ARG], ARGV[FIRST_ARG + 1], tonumber(ARGV[FIRST_ARG + 2])
local stored = redis.call('GET', K.reply)
if stored then
  local first = lists.unpack(stored)
  return { tonumber(first[1]), tonumber(first[2]) }
end
local is_kept = {}
for i = 1, tonumber(ARGV[FIRST_ARG + 3]) do is_kept[tonumber(ARGV[FIRST_ARG + 3 + i])] = true end
local tasks, has_more = {}, 0
for _, id in ipairs(redis.call('SMEMBERS', K.leases)) do
  if #tasks >= limit then
    has_more = 1
    break
  end
  local task = task_record.read(id)
  if not (task and task.state == 'started' and task.worker == worker) then
    writes.srem(K.leases, id)
  elseif not is_kept[task.token] then
    task.owner = users.load(task.user)
    moves.touch(task)
    tasks[#tasks + 1] = task
  end
end
if #tasks > 0 then statistics.touch_minute() end
slot.touch_all()
queues.order_returning(tasks)
for _, task in ipairs(tasks) do leases.give_back_unreported(task, 'released', reason) end
saving.commit()
redis.call('SET', K.reply, lists.pack({ numbers.exact(#tasks), numbers.exact(has_more) }), 'PX', 120000)
ring.wake_if(ring.has_grown)
return { #tasks, has_more }
