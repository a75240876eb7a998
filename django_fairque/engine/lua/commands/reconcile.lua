#!lua flags=allow-oom
-- Give back all leases of a worker except those that it names: the others have not begun, or the worker does not know of them.
--
-- None of them counts as a delivery. A repetition of the same call does nothing: the first copy may be carried out late, when the
-- worker has fetched new tasks, of which the call says nothing.
--
-- KEYS    base reply leases
-- ARGV    options, worker, reason, limit (1..1000), n, then the n tokens that it keeps
-- REPLY   leases given back, 1 if there may be more
-- COST    4 commands, 1 for each lease that the worker holds (as many as it has fetched), 10 more for each that is given back
-- include heads base ring organization recent_usage user bounds task
local worker, reason, limit = ARGV[FIRST_ARG], ARGV[FIRST_ARG + 1], tonumber(ARGV[FIRST_ARG + 2])
local stored = redis.call('GET', K.reply)
if stored then
  local first = unpack_list(stored)
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
  local task = read_task(id)
  if not (task and task.state == 'started' and task.worker == worker) then
    srem(K.leases, id)
  elseif not is_kept[task.token] then
    task.owner = load_user(task.user)
    touch_moves(task)
    tasks[#tasks + 1] = task
  end
end
if #tasks > 0 then touch_minute() end
touch_all()
order_returning(tasks)
for _, task in ipairs(tasks) do return_unreported(task, 'released', reason) end
commit()
redis.call('SET', K.reply, pack({ exact(#tasks), exact(has_more) }), 'PX', 120000)
wake_if(ring_grew)
return { #tasks, has_more }
