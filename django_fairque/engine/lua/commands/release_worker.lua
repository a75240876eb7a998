#!lua flags=allow-oom
-- Give back the leases of a worker process that has ended, so that its tasks are ready again at once.
--
-- Only the tasks that were running when the process died count as delivered once more, because one of them may have
-- killed it. Tasks in its buffer had not begun.
--
-- KEYS    base workers worker leases revoked
-- ARGV    options, worker, reason, forget its record (0/1), limit (1..1000), n, then the n tokens it was running when it died by
--         itself, m, then m tokens that it was running when it was ended for another reason
-- REPLY   leases given back, 1 if there may be more
-- COST    10 commands a lease
-- include clock slot statistics writes ring users queues saving task_record moves quarantine leases task_names
local worker, reason, limit = ARGV[FIRST_ARG], ARGV[FIRST_ARG + 1], tonumber(ARGV[FIRST_ARG + 3])
local crashed = {}
for i = 1, tonumber(ARGV[FIRST_ARG + 4]) do crashed[tonumber(ARGV[FIRST_ARG + 4 + i])] = true end
local started_tokens, at = {}, FIRST_ARG + 5 + tonumber(ARGV[FIRST_ARG + 4])
for i = 1, tonumber(ARGV[at]) do started_tokens[tonumber(ARGV[at + i])] = true end
local ids = redis.call('SRANDMEMBER', K.leases, limit)
local tasks = {}
for _, id in ipairs(ids) do
  local task = task_record.read(id)
  if task and task.state == 'started' and task.worker == worker then
    task.owner, task.has_started = users.load(task.user), started_tokens[task.token]
    moves.touch(task)
    tasks[#tasks + 1] = task
  else
    writes.srem(K.leases, id)
  end
end
if #tasks > 0 then
  statistics.touch_minute()
  task_names.touch()
end
if next(crashed) then quarantine.touch() end
slot.touch_all()
queues.order_returning(tasks)
for _, task in ipairs(tasks) do leases.give_back_unreported(task, crashed[task.token] and 'crashed' or 'released', reason) end
local has_more = #ids >= limit
if ARGV[FIRST_ARG + 2] == '1' and not has_more then
  writes.zrem(K.workers, worker)
  redis.call('DEL', K.worker, K.revoked)
end
saving.commit()
ring.wake_if(ring.has_grown)
return { #tasks, has_more and 1 or 0 }
