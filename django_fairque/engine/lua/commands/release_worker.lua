#!lua flags=allow-oom
-- A worker process is gone: what it had is ready again at once.
--
-- Only tasks that it was running when it died count as handed out once more (poison accounting); what lay in
-- its buffer had no part in it.
--
-- KEYS    base workers worker leases revoked
-- ARGV    options, worker, reason, forget its record (0/1), limit (1..1000), n, then the n tokens it was running when it died by
--         itself, m, then m tokens that it was running when it was ended for another reason
-- REPLY   leases given back, 1 if there may be more
-- COST    10 commands a lease
-- include heads base ring organization recent_usage user bounds task
local worker, reason, limit = ARGV[FIRST_ARG], ARGV[FIRST_ARG + 1], tonumber(ARGV[FIRST_ARG + 3])
local crashed = {}
for i = 1, tonumber(ARGV[FIRST_ARG + 4]) do crashed[tonumber(ARGV[FIRST_ARG + 4 + i])] = true end
local started_tokens, at = {}, FIRST_ARG + 5 + tonumber(ARGV[FIRST_ARG + 4])
for i = 1, tonumber(ARGV[at]) do started_tokens[tonumber(ARGV[at + i])] = true end
local ids = redis.call('SRANDMEMBER', K.leases, limit)
local tasks = {}
for _, id in ipairs(ids) do
  local task = read_task(id)
  if task and task.state == 'started' and task.worker == worker then
    task.owner, task.has_started = load_user(task.user), started_tokens[task.token]
    touch_moves(task)
    tasks[#tasks + 1] = task
  else
    srem(K.leases, id)
  end
end
if #tasks > 0 then touch_minute() end
if next(crashed) then quarantine.touch() end
touch_all()
order_returning(tasks)
for _, task in ipairs(tasks) do return_unreported(task, crashed[task.token] and 'crashed' or 'released', reason) end
local has_more = #ids >= limit
if ARGV[FIRST_ARG + 2] == '1' and not has_more then
  zrem(K.workers, worker)
  redis.call('DEL', K.worker, K.revoked)
end
commit()
wake_if(ring_grew)
return { #tasks, has_more and 1 or 0 }
