-- Resolve the dependents of a task that has ended. Used by settle, sweep and all commands that end tasks.
--
-- An edge is in two sets, `deps:waiting:{A}` (who waits for A) and `deps:blocked:{B}` (what B waits for); those whose
-- policy is not to wait out a failure are in `deps:reacting:{A}` too. A task with dependents that ends goes into
-- `resolving`; from there its dependents are taken in slices, in the call that ended it and in later ones. If A has more
-- than a slice of dependents, those of users with few deferred tasks are in `deps:first:{A}` too and are taken first
-- (`note_first` in lib/push_dependencies.lua).

local go_on, release, forget_mirror, resolve -- all else here is its own: a script has room for 200 names
do

local function remove_edge(blocker, task)
  srem(waiting_key(blocker), task.id)
  srem(reacting_key(blocker), task.id)
  srem(first_key(blocker), task.id)
  srem(blocked_key(task.id), blocker)
  count('edges', -1)
end

-- Continue a task that has left its waiting state, and that nothing blocks any more.
function go_on(task)
  local due = number(task.raw.due)
  if task.expires and task.expires <= now then
    expire(task)
  elseif due and due > now then
    to_scheduled(task.owner, task, due)
  else
    set_stat('stamp', math.max(now - EPOCH, stat.stamp + 1))
    task.ready = EPOCH + stat.stamp
    to_queued(task.owner, task, false)
  end
end

-- DEFERRED is over.
function release(task)
  zrem(K['state:deferred'], task.id)
  add(task.owner, 'deferred', -1)
  go_on(task)
end

local function cancel_dependent(task, reason)
  leave_waiting(task.owner, task)
  remember(task.id, 'canceled', '', reason, '')
  to_ended(task, 'canceled', result_ttl)
  count('canceled', 1)
end

-- Adds the dependents with these ids to `tasks`, up to `limit`. With `is_failed` only those that don't wait out the failure.
local function add_dependents(tasks, source, ids, limit, seen, is_failed)
  for _, id in ipairs(ids) do
    if #tasks >= limit then return end
    local task = not seen[id] and read_task(id)
    if task and task.state == 'deferred' then
      if not is_failed or task.raw.policy then
        task.owner = load_user(task.user)
        touch_moves(task)
        tasks[#tasks + 1] = task
      end
    elseif not seen[id] then
      srem(source, id) -- left over
    end
    seen[id] = true
  end
end

-- The dependents of an ended task that are resolved next: at most `limit`, the oldest first.
local function dependents(source, ended, limit, is_failed)
  local tasks, seen = {}, {}
  local ids = attempt('SRANDMEMBER', source, limit) or {}
  if #ids == limit then -- there may be more
    add_dependents(tasks, first_key(ended), attempt('SRANDMEMBER', first_key(ended), limit) or {}, limit, seen, is_failed)
  end
  add_dependents(tasks, source, ids, limit, seen, is_failed)
  touch(waiting_key(ended))
  touch(reacting_key(ended))
  touch(first_key(ended))
  if #tasks > 0 then touch_minute() end
  touch_all()
  table.sort(tasks, function(a, b)
    if a.created ~= b.created then return a.created < b.created end
    return a.id < b.id
  end)
  return tasks
end

local function tell(task, blocker)
  local state, id = blocker.state, blocker.id
  if state == 'finished' or task.raw.policy == 'run' then
    remove_edge(id, task)
    if #task.blockers <= 1 then
      release(task)
      count('resolved', 1)
      tally('resolve:' .. histogram.bucket(now - (tonumber(blocker.raw.ended) or now)), 1)
    end
  else
    cancel_dependent(task, 'dependency ' .. id .. (state == 'failed' and ' has failed' or ' was canceled'))
  end
end

-- Send a message to the other shards whose tasks wait for this task: it has ended.
local function tell_shards(blocker)
  for _, shard in ipairs(blocker.watchers or {}) do post('tell:' .. shard .. ':' .. blocker.id, blocker.state) end
end

function forget_mirror(id)
  redis.call('DEL', remote_key(id))
  zrem(K.mirrors, id)
end

-- Resolve at most `limit` dependents; returns whether there are more. An ended task that has dependents left takes its user's
-- next turn for them.
function resolve(limit)
  limit = math.min(limit, MOST_RESOLVED)
  while limit > 0 do
    local id, turn = unpack(redis.call('ZRANGE', K.resolving, 0, 0, 'WITHSCORES'))
    if not id then return false end
    turn = tonumber(turn)
    local blocker = read_task(id) or read_mirror(id) or { id = id, state = 'canceled', raw = {} }
    local user = blocker.user and load_user(blocker.user)
    if blocker.raw.watched then blocker.watchers = attempt('SMEMBERS', watchers_key(id)) or {} end
    local source
    if blocker.state == 'failed' then
      source = reacting_key(id)
    elseif blocker.state == 'finished' or blocker.state == 'canceled' then
      source = waiting_key(id)
    end
    local tasks = source and dependents(source, id, limit, blocker.state == 'failed') or {}
    for _, task in ipairs(tasks) do tell(task, blocker) end
    tell_shards(blocker)
    limit = limit - math.max(1, #tasks)
    if turn > stat.resolve_turn then set_stat('resolve_turn', turn) end
    commit() -- written, so that the next look at the sets is true
    if source and (attempt('SCARD', source) or 0) > 0 then
      zadd(K.resolving, user and next_turn_to_resolve(user) or math.max(stat.resolve_turn, turn + 1), id)
      commit()
    else
      if source and blocker.watchers and blocker.state ~= 'failed' then redis.call('DEL', watchers_key(id)) end
      if source and blocker.shard and blocker.state ~= 'failed' then
        forget_mirror(id)
        flush()
      end
      redis.call('ZREM', K.resolving, id)
    end
  end
  return redis.call('ZCARD', K.resolving) > 0
end

end
