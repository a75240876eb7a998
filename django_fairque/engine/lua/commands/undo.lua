#!lua flags=allow-oom
-- Undo a part of an act on many tasks: restore its next tasks, except tasks that were changed after the act.
--
-- A task is as the act left it if the last line of its history is that of the act, and it is in the state in which the
-- act left it. A requeued, discarded or moved task becomes the same dead letter again; a canceled task gets its earlier
-- position in its user's queue. A dependent that was canceled with a task of the act waits again for its dependencies,
-- if all are on this shard and none stays canceled.
--
-- KEYS    base reply
-- ARGV    options, id, turn, cursor, n (1..1000), and of a move n digits: 1 if the other queue has canceled the task, so that it may be restored here
-- REPLY   how many tasks were restored; `-` if another worker has taken this step: nothing is changed
-- COST    14 commands a task; of a dependent 8 more for each of its up to 100 dependencies
-- include heads numbers calls keys options counters clock slot writes lists history records users saving task_record edges moves dependents acts
local stored = redis.call('GET', K.reply)
if stored then return stored end
local act = acts.read(FIRST_ARG)
if act.is_late then return '-' end
local LEFT_IN = { requeued = 'queued', discarded = 'canceled', moved = 'canceled', canceled = 'canceled' }
local FAILURES = { failed = true, expired = true, poisoned = true }
local LINES = 25
local ids, allowed = redis.call('LRANGE', act.tasks, 0, ARGV[FIRST_ARG + 3] - 1), ARGV[FIRST_ARG + 4]
local tasks, is_restored = {}, {}

-- Find the tasks for which a dependent waits again. Returns nil if it stays canceled.
local function read_blockers(task)
  local parents, blockers = lists.unpack(task.raw.parents or ''), {}
  if #parents > 100 then return nil end -- bounds the length of the call
  for _, id in ipairs(parents) do
    local parent = task_record.read(id)
    local state = is_restored[id] and 'queued' or parent and parent.state
    local is_lost = state == 'canceled' or state == 'failed' and task.raw.policy
    if not state or is_lost and task.raw.policy ~= 'run' then return nil end
    if state ~= 'finished' and not is_lost then
      blockers[#blockers + 1] = id
      edges.touch(id)
    end
  end
  slot.touch(keys.blocked(task.id))
  return blockers
end

for i, id in ipairs(ids) do
  local task, lines = task_record.read(id), calls.attempt('LRANGE', keys.history(id), -LINES, -1) or {}
  local last = task and lines[1] and lists.unpack(lines[#lines])
  local is_of_act = last and last[4] == act.reason and LEFT_IN[last[2]] == task.state and (not allowed or string.sub(allowed, i, i) == '1')
  if last and not is_of_act and task.raw.act == act.id and task.state == 'canceled' and last[2] == 'canceled' then task.blockers = read_blockers(task) end
  if is_of_act or task and task.blockers then
    task.owner, task.change, is_restored[id] = users.load(task.user), last[2], true
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

local function wait_again(task)
  if #task.blockers == 0 then return dependents.go_on(task) end
  for _, id in ipairs(task.blockers) do
    writes.sadd(keys.blocked(task.id), id)
    writes.sadd(keys.waiting(id), task.id)
    if task.raw.policy then writes.sadd(keys.reacting(id), task.id) end
  end
  writes.flush() -- write the edges before the record
  counters.count('edges', #task.blockers)
  redis.call('HSET', task.key, 'state', 'deferred')
  writes.zadd(K['state:deferred'], task.expires or clock.NEVER, task.id)
  if task.expires then counters.note_due(task.expires) end
  records.add(task.owner, 'deferred', 1)
end

local function restore_waiting(task)
  local due = task.raw.due and numbers.read(task.raw.due)
  redis.call('HDEL', task.key, 'ended', 'act')
  if task.size then
    redis.call('HSET', task.key, 'size', numbers.exact(task.size))
    records.add(task.owner, 'bytes', task.size)
  end
  if task.blockers then wait_again(task) elseif due and due > clock.now then moves.to_scheduled(task.owner, task, due) else moves.to_queued(task.owner, task, false) end
  writes.zrem(K['state:canceled'], task.id)
end

for _, task in ipairs(tasks) do
  history.add(task.id, 'restored', '', act.reason, '')
  if task.change == 'canceled' then restore_waiting(task) else restore_letter(task) end
end
redis.call('LTRIM', act.tasks, #ids, -1)
acts.save(act, { 'restored', #tasks, 'kept', #ids - #tasks })
saving.commit()
return saving.finish(numbers.exact(#tasks))
