-- Resolve the dependents of a task that has ended. Used by settle, sweep and all commands that end tasks.
--
-- If task B waits for task A, this edge is stored in two sets: `deps:waiting:{A}` (the tasks that wait for A) and
-- `deps:blocked:{B}` (the tasks for which B waits). B is also in `deps:reacting:{A}` if B must run or be canceled when
-- A fails. When a task with dependents ends, it is added to `resolving`. Its dependents are then resolved in slices, by
-- the call that ended it and by later calls. If A has more dependents than a slice, the dependents of users with few
-- deferred tasks are also in `deps:first:{A}` and are resolved first (`note_first` in lib/push_dependencies.lua).
--
-- include numbers calls keys options counters clock slot statistics writes outbox history records users saving task_record mirrors edges moves acts

local dependents = {}

-- Continue a task that has left its waiting state and is not blocked any more.
function dependents.go_on(task)
  local due = numbers.read(task.raw.due)
  if task.expires and task.expires <= clock.now then
    moves.expire(task)
  elseif due and due > clock.now then
    moves.to_scheduled(task.owner, task, due)
  else
    counters.set('stamp', math.max(clock.now - clock.EPOCH, counters.shard.stamp + 1))
    task.ready = clock.EPOCH + counters.shard.stamp
    moves.to_queued(task.owner, task, false)
  end
end

-- Let a task leave DEFERRED and continue.
function dependents.release(task)
  writes.zrem(K['state:deferred'], task.id)
  records.add(task.owner, 'deferred', -1)
  dependents.go_on(task)
end

local function cancel_dependent(task, reason, act)
  moves.leave_waiting(task.owner, task)
  history.add(task.id, 'canceled', '', reason, '')
  moves.to_ended(task, 'canceled', act and math.max(acts.UNDO_TTL, options.result_ttl) or options.result_ttl)
  if act then acts.add_dependent(act, task) end
  counters.count('canceled', 1)
end

-- Add the dependents with these ids to `tasks`, up to `limit`. If the ended task has failed (`is_failed`), add only
-- dependents whose policy is to run or to be canceled then. The other dependents stay deferred, because the failed task
-- may be requeued.
local function add_dependents(tasks, source, ids, limit, seen, is_failed)
  for _, id in ipairs(ids) do
    if #tasks >= limit then return end
    local task = not seen[id] and task_record.read(id)
    if task and task.state == 'deferred' then
      if not is_failed or task.raw.policy then
        task.owner = users.load(task.user)
        moves.touch(task)
        tasks[#tasks + 1] = task
      end
    elseif not seen[id] then
      writes.srem(source, id) -- the entry is outdated: its task is not deferred any more
    end
    seen[id] = true
  end
end

-- Return the dependents of an ended task that are resolved next: at most `limit`, the oldest first.
local function next_dependents(source, ended, limit, is_failed)
  local tasks, seen = {}, {}
  local ids = calls.attempt('SRANDMEMBER', source, limit) or {}
  if #ids == limit then -- the set may have more members than were read
    add_dependents(tasks, keys.first(ended), calls.attempt('SRANDMEMBER', keys.first(ended), limit) or {}, limit, seen, is_failed)
  end
  add_dependents(tasks, source, ids, limit, seen, is_failed)
  edges.touch(ended)
  if #tasks > 0 then statistics.touch_minute() end
  slot.touch_all()
  table.sort(tasks, function(a, b)
    if a.created ~= b.created then return a.created < b.created end
    return a.id < b.id
  end)
  return tasks
end

local function tell(task, blocker)
  local state, id = blocker.state, blocker.id
  if state == 'finished' or task.raw.policy == 'run' then
    edges.remove(id, task.id)
    counters.count('edges', -1)
    if #task.blockers <= 1 then
      dependents.release(task)
      counters.count('resolved', 1)
      statistics.tally('resolve:' .. statistics.bucket(clock.now - (tonumber(blocker.raw.ended) or clock.now)), 1)
    end
  else
    cancel_dependent(task, 'dependency ' .. id .. (state == 'failed' and ' has failed' or ' was canceled'), state == 'canceled' and blocker.raw.act or nil)
  end
end

-- Notify the other shards whose tasks wait for this task that it has ended.
local function tell_shards(blocker)
  for _, shard in ipairs(blocker.watchers or {}) do outbox.post('tell:' .. shard .. ':' .. blocker.id, blocker.state) end
end

-- Resolve at most `limit` dependents. Returns whether there are more. If an ended task has dependents left, a later
-- call resolves them, when it is the turn of the task's user again.
function dependents.resolve(limit)
  limit = math.min(limit, edges.MOST_RESOLVED)
  while limit > 0 do
    local id, turn = unpack(redis.call('ZRANGE', K.resolving, 0, 0, 'WITHSCORES'))
    if not id then return false end
    turn = tonumber(turn)
    local blocker = task_record.read(id) or mirrors.read(id) or { id = id, state = 'canceled', raw = {} }
    local user = blocker.user and users.load(blocker.user)
    if blocker.raw.watched then blocker.watchers = calls.attempt('SMEMBERS', keys.watchers(id)) or {} end
    if blocker.raw.act then acts.touch(blocker.raw.act) end
    local source
    if blocker.state == 'failed' then
      source = keys.reacting(id)
    elseif blocker.state == 'finished' or blocker.state == 'canceled' then
      source = keys.waiting(id)
    end
    local tasks = source and next_dependents(source, id, limit, blocker.state == 'failed') or {}
    for _, task in ipairs(tasks) do tell(task, blocker) end
    tell_shards(blocker)
    limit = limit - math.max(1, #tasks)
    if turn > counters.shard.resolve_turn then counters.set('resolve_turn', turn) end
    saving.commit() -- write the sets before they are read again
    if source and (calls.attempt('SCARD', source) or 0) > 0 then
      writes.zadd(K.resolving, user and moves.next_turn_to_resolve(user) or math.max(counters.shard.resolve_turn, turn + 1), id)
      saving.commit()
    else
      if source and blocker.watchers and blocker.state ~= 'failed' then redis.call('DEL', keys.watchers(id)) end
      if source and blocker.shard and blocker.state ~= 'failed' then
        mirrors.forget(id)
        writes.flush()
      end
      redis.call('ZREM', K.resolving, id)
    end
  end
  return redis.call('ZCARD', K.resolving) > 0
end
