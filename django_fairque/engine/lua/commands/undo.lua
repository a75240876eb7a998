#!lua flags=allow-oom
-- Undo a part of an act on many tasks: restore its next tasks, except those that something has changed since.
--
-- A task is as the act left it if the last line of its history is that of the act, and it is in the state in which the act left it. A requeued one
-- becomes the same dead letter again, a discarded or moved one as well; a canceled one gets its earlier place in its user's queue.
--
-- KEYS    base reply
-- ARGV    options, id, turn, cursor, n (1..1000), and of a move n digits: 1 if the other queue has canceled the task, so that it may be restored here
-- REPLY   how many tasks were restored; `-` if another worker has taken this step: nothing is changed
-- COST    14 commands a task
-- include heads numbers calls keys options counters clock replies slot statistics writes lists history records ring users saving task_record moves acts
local stored = redis.call('GET', K.reply)
if stored then return stored end
local act = acts.read(FIRST_ARG)
if act.is_late then return '-' end
local LEFT_IN = { requeued = 'queued', discarded = 'canceled', moved = 'canceled', canceled = 'canceled' }
local FAILURES = { failed = true, expired = true, poisoned = true }
local LINES = 25
local ids, allowed = redis.call('LRANGE', act.tasks, 0, ARGV[FIRST_ARG + 3] - 1), ARGV[FIRST_ARG + 4]
local tasks = {}
for i, id in ipairs(ids) do
  local task, lines = task_record.read(id), calls.attempt('LRANGE', keys.history(id), -LINES, -1) or {}
  local last = task and lines[1] and lists.unpack(lines[#lines])
  if last and last[4] == act.reason and LEFT_IN[last[2]] == task.state and (not allowed or string.sub(allowed, i, i) == '1') then
    task.owner, task.change = users.load(task.user), last[2]
    for j = #lines - 1, 1, -1 do
      local line = lists.unpack(lines[j])
      if FAILURES[line[2]] then task.letter = line break end
    end
    if task.change == 'canceled' and (task.owner.max_bytes or options.max_backlog_bytes > 0) then
      task.size = #(heads.payload_in(redis.call('GET', keys.payload(id)) or '')) + 500
    end
    slot.touch(keys.payload(id))
    moves.touch(task)
    tasks[#tasks + 1] = task
  end
end
slot.touch_all()

local function restore_letter(task)
  local failure = task.letter and task.letter[2] or 'failed'
  if task.state == 'queued' then moves.leave_waiting(task.owner, task) else writes.zrem(K['state:canceled'], task.id) end
  moves.to_ended(task, 'failed', options.failed_ttl, 'failure', failure, 'reason', task.letter and task.letter[4] or '')
  if task.letter then redis.call('HSET', task.key, 'ended', task.letter[1]) end
  counters.count('lying:' .. failure, 1)
  records.add(task.owner, 'dead', 1)
end

local function restore_waiting(task)
  local due = task.raw.due and numbers.read(task.raw.due)
  redis.call('HDEL', task.key, 'ended')
  if task.size then
    redis.call('HSET', task.key, 'size', numbers.exact(task.size))
    records.add(task.owner, 'bytes', task.size)
  end
  if due and due > clock.now then moves.to_scheduled(task.owner, task, due) else moves.to_queued(task.owner, task, false) end
  writes.zrem(K['state:canceled'], task.id)
end

for _, task in ipairs(tasks) do
  history.add(task.id, 'restored', '', act.reason, '')
  if task.change == 'canceled' then restore_waiting(task) else restore_letter(task) end
end
redis.call('LTRIM', act.tasks, #ids, -1)
acts.save(act, { 'restored', #tasks, 'kept', #ids - #tasks })
saving.commit()
ring.wake_if(ring.has_grown)
local reply = numbers.exact(#tasks)
redis.call('SET', K.reply, reply, 'PX', replies.ttl(#reply))
statistics.flush()
return reply
