#!lua
-- Requeue dead letters: they change from FAILED to QUEUED, have all their retries again, and keep their history.
--
-- KEYS    base reply
-- ARGV    options, n (1..1000), then n × (id, how many times it had died, has a new payload (0/1), payload, class: 0 bulk, 7 urgent, 3 lane normal),
--         and of an act on many tasks its id, turn and new cursor (`lib/acts.lua`)
-- REPLY   one digit per entry: 0 no such dead letter (any more), or its payload was removed (`short`) and there is no new one; 1 requeued.
--         `-` if another worker has taken this step of the act: nothing is changed
-- COST    8 commands an entry
-- include numbers keys options counters clock slot writes history records users queues saving task_record moves acts
local stored = redis.call('GET', K.reply)
if stored then return stored end
local function head_of(task) return task.payload_at and string.sub(task.text, 1, task.payload_at - 1) or '' end
local size, codes, tasks, seen = tonumber(ARGV[FIRST_ARG]), {}, {}, {}
local act = acts.read(FIRST_ARG + 1 + size * 5)
if act and act.is_late then return '-' end
for i = 1, size do
  local at = FIRST_ARG + 1 + (i - 1) * 5
  local task = not seen[ARGV[at]] and task_record.read(ARGV[at])
  local has_payload = task and (ARGV[at + 2] == '1' or (tonumber(task.raw.short) or 0) == 0)
  codes[i] = has_payload and task.state == 'failed' and task.died == tonumber(ARGV[at + 1]) and 1 or 0
  if codes[i] == 1 then
    seen[ARGV[at]] = true -- set only here: an entry with an old number of deaths may come before the current entry of the same task
    task.owner, task.class = users.load(task.user), tonumber(ARGV[at + 4])
    if ARGV[at + 2] == '1' then task.payload = ARGV[at + 3] end
    local limited = task.owner.max_bytes or options.max_backlog_bytes > 0
    if limited then task.size = (task.payload and #task.payload or redis.call('STRLEN', keys.payload(task.id)) - #head_of(task)) + 500 end
    slot.touch(keys.payload(task.id))
    moves.touch(task)
    tasks[#tasks + 1] = task
  end
end
slot.touch_all()
for _, task in ipairs(tasks) do
  if task.payload then redis.call('SET', keys.payload(task.id), head_of(task) .. task.payload) end
  history.add(task.id, 'requeued', '', act and act.reason or '', '')
  counters.set('stamp', math.max(clock.now - clock.EPOCH, counters.shard.stamp + 1))
  task.ready = clock.EPOCH + counters.shard.stamp
  task.raw.warn = nil
  task.expires = nil -- a requeued task must run, so it does not expire any more
  -- Delete the fields of the dead letter first. Otherwise a field such as `expires` would end the queued task again.
  redis.call('HDEL', keys.task(task.id), 'expires', 'failure', 'reason', 'ended', 'due', 'delay', 'warn',
    'immediate', 'snoozes', 'short')
  if task.size then
    redis.call('HSET', task.key, 'size', numbers.exact(task.size))
    records.add(task.owner, 'bytes', task.size)
  end
  -- A requeued task gets the lane that the caller chose. So it goes before the tasks of other users only on purpose.
  if queues.lane_of(task.priority) ~= queues.lane_of(task.class) then
    task.priority = task.class
    redis.call('HSET', task.key, 'priority', task.class)
  end
  moves.to_queued(task.owner, task, false, 'retries', 0, 'deliveries', 0, 'token', 0)
  writes.zrem(K['state:failed'], task.id)
  counters.count('lying:' .. (task.raw.failure or 'failed'), -1)
  records.add(task.owner, 'dead', -1)
  counters.count('requeued', 1)
end
if act then acts.save_changed(act, tasks, size) end
saving.commit()
return saving.finish(table.concat(codes))
