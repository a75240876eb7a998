-- Limits by key: how many tasks of a key run at once, or start in a period, counted over all tasks and users that name
-- the key.
--
-- - A shared limit is a small fair queue. A task with shared limits waits at one of them: at its first full limit, or
--   else at its first shared limit. The users at a limit are ordered by tags of that limit (start-time fair queueing,
--   as in lib/ring.lua). lib/limit_turns.lua hands out these tasks.
-- - A limit of one user has no queue of users. If the limit is not full, a task is admitted to the user's own queues.
-- Other tasks wait at the limit.
--
-- A task is counted in `running` at each of its limits from the moment when it gets its lease until the lease ends.
-- Invariants: nothing else changes `running`, and a limit of one user is full while tasks wait there (or it is in
-- `throttled` until it opens).
--
-- include numbers calls keys lists counters clock slot writes records ring queues task_record

local limits = {}

local set, add, exact = records.set, records.add, numbers.exact -- local aliases, which Lua finds faster: these functions are called often
local LANES = { 'urgent', 'normal', 'bulk' }
local USERS = { urgent = 'users:urgent', normal = 'users:normal', bulk = 'users:bulk' } -- the number of users at the limit, by lane
local BIT = { urgent = 1, normal = 2, bulk = 4 } -- bits of `listed`: the lanes in which the limit is in `limited:{lane}`
local ADMITTED = { [6] = 'admitted:6', [7] = 'admitted:7' } -- the number of admitted tasks of priorities 6 and 7
local MOST_ADMITTED = 32 -- most tasks that a call admits at one limit
limits.PREFIX = '\254' -- the first byte of a limit's entry in `throttled`; no UTF-8 text has this byte.

local by_id, order, arriving = {}, {}, {} -- `arriving`: tasks that begin to wait in this call
-- `limits.returning`: by key, the parked entries whose users have returned to their limits
each_call(function()
  if order[1] then by_id, order = {}, {} end
  if arriving[1] then arriving = {} end
  if not limits.returning or next(limits.returning) then limits.returning = {} end
end)

function limits.count_parked(one, lane, number)
  add(one, 'parked', number)
  if lane == 'urgent' then add(one, 'parked_urgent', number) end
  counters.count('parked', number)
end
function limits.are_waiting() return counters.shard.limited > 0 end
function limits.has_arrivals() return arriving[1] ~= nil end

local function shown(limit) return (limit.waiting > 0 or limit.closed) and limit.waiting or nil end

-- Return the record of a limit, which is read once in a call.
function limits.load(id)
  local limit = by_id[id]
  if limit then return limit end
  limit = {
    id = id, key = keys.limit(id), running = 0, waiting = 0, admitted = 0, ['admitted:6'] = 0, ['admitted:7'] = 0, vtime = 0, tat = 0, burst = 1, listed = 0,
    ['users:urgent'] = 0, ['users:normal'] = 0, ['users:bulk'] = 0, heads = {}, ending = 0, coming = 0, left = {}, gone = {}, places = {}, windows = {}, standing = {},
    tags = {}, changed = {},
  }
  local flat = calls.attempt('HGETALL', limit.key) or {}
  for i = 1, #flat, 2 do limit[flat[i]] = numbers.read(flat[i + 1]) or limit[flat[i]] end
  limit.is_new = #flat == 0
  limit.has_queue = string.byte(id) == 115 or limit.queue == 1 -- 115 is "s": a shared limit
  limit.was_shown = shown(limit)
  if limit.gap then limit.tat = math.min(limit.tat, clock.now + limit.gap * limit.burst) end -- a higher value comes from a clock that was set back
  by_id[id], order[#order + 1] = limit, limit
  return limit
end

-- Return the number of further tasks of the limit that may start now.
function limits.free(limit)
  if limit.closed and limit.closed > clock.now then return 0 end
  local places = limit.at_once and limit.at_once - limit.running or math.huge
  if not limit.gap then return places end
  return math.min(places, limit.burst - math.ceil(math.max(0, limit.tat - clock.now) / limit.gap))
end

-- Return the moment from which the limit has room for a critical or urgent task or, if it has room now, for one more
-- task than are admitted. Only closing and the rate are considered, and not the running tasks.
local function opens_at(limit)
  local at = limit.closed or 0
  if not limit.gap then return at end
  local first, admitted = limit.tat - limit.gap * (limit.burst - 1), limit.has_queue and 0 or math.min(limit.admitted, limit.burst - 1)
  return math.max(at, first > clock.now and first or first + limit.gap * admitted)
end

local function set_values(limit, at_once, gap, burst)
  local values = { at_once = tonumber(at_once), gap = tonumber(gap), burst = tonumber(burst) or 1 }
  for _, field in ipairs({ 'at_once', 'gap', 'burst' }) do
    if limit[field] ~= values[field] then set(limit, field, values[field]) end
  end
end

-- Return the limits of a task, and store them as its `limit_list`. A push sets the values of the limits.
function limits.of(task, is_push, user_name)
  if task.limit_list then return task.limit_list end
  local parts, found = lists.unpack(task.limits), {}
  user_name = user_name or task.user or task.owner.name
  for i = 1, #parts, 5 do
    local flags = parts[i + 4]
    local is_of_user = string.find(flags, 'u', 1, true)
    local limit = limits.load(is_of_user and 'u:' .. #user_name .. ':' .. user_name .. ':' .. parts[i] or 's:' .. parts[i])
    if is_push or not (limit.at_once or limit.gap) then set_values(limit, parts[i + 1], parts[i + 2], parts[i + 3]) end
    if string.find(flags, 'n', 1, true) and limit.queue ~= 1 then -- a task that may be replaced waits at the limit until it starts
      limit.has_queue = true
      set(limit, 'queue', 1)
    end
    found[#found + 1] = limit
  end
  task.limit_list = found
  return found
end

-- Touch the keys at which a task of this user may wait before the first write, so that a key that can't be used ends
-- the call before anything is written (`slot.touch`).
local function touch_places(task, user)
  for _, limit in ipairs(limits.of(task)) do
    slot.touch(keys.limit_queue(limit.id, user.name))
    if limit.has_queue then
      slot.touch(keys.limit_tags(limit.id))
      if limit.queue == 1 then slot.touch(keys.limit_waiting(limit.id)) end
      for _, lane in ipairs(LANES) do slot.touch(keys.limit_users(limit.id, lane)) end
    end
  end
end

-- Read the tasks that can be admitted at a limit of one user after the changes of this call. A task with several limits
-- may wait at another limit instead, so some further tasks are read too.
local function read_heads(limit)
  local free = limits.free(limit) + limit.ending
  local wanted = math.min(limit.waiting, math.max(free - limit.admitted, math.min(1, free)))
  local heads = limit.heads
  while #heads < wanted and #heads < MOST_ADMITTED do
    local last = math.min(wanted, MOST_ADMITTED) - 1
    local ids = calls.attempt('ZRANGE', keys.limit_queue(limit.id, limit.owner.name), #heads, last) or {}
    if not ids[1] then return end
    for _, id in ipairs(ids) do
      local task = task_record.read(id) or { id = id }
      heads[#heads + 1] = task
      if task.limits then touch_places(task, limit.owner) end
      if not task.limits or #limits.of(task) > 1 or ADMITTED[task.priority] and wanted < free then wanted = wanted + 1 end
      slot.touch(task.priority == 6 and keys.critical(limit.owner.name) or keys.normal(limit.owner.name))
    end
  end
end

-- Before the first write, read the limits of a task that moves, and the tasks that this move may admit.
function limits.touch(task, is_push)
  local frees = task.state == 'started' or task.state == 'queued' and (task.raw.waits_at or '') == ''
  for _, limit in ipairs(limits.of(task, is_push)) do
    if not limit.has_queue then
      if frees then limit.ending = limit.ending + 1 end
      limit.owner = task.owner
      read_heads(limit)
    end
  end
  touch_places(task, task.owner)
end

-- Return the user to which a limit belongs; nil for a shared limit.
function limits.owner_name(id)
  local size, at = string.match(id, '^u:(%d+):()')
  return size and string.sub(id, at, at + tonumber(size) - 1)
end

-- Check the limit with this id again, because it has opened or was changed. `load_user(name)` returns the record of a
-- user.
function limits.reconsider(id, load_user)
  local limit = limits.load(id)
  set(limit, 'held', limit.held)
  if not limit.has_queue then
    limit.owner = load_user(limits.owner_name(id))
    read_heads(limit)
    if limit.waiting > 0 and limits.free(limit) > limit.admitted and not limit.heads[1] then set(limit, 'waiting', 0) end -- correct the count: no task waits
  end
  return limit
end

-- Correct one limit, drawn at random among those with waiting tasks. An admitted task that was lost on the server keeps
-- its limit full until this function finds that the user has no ready tasks.
function limits.correct_one(load_user)
  local id = limits.are_waiting() and redis.call('ZRANDMEMBER', K.limits)
  local user_name = id and limits.owner_name(id)
  local user, limit = user_name and load_user(user_name), user_name and limits.load(id)
  if not user or user.is_damaged or limit.admitted == 0 or user.ready + user['ready:0'] + user['ready:7'] > 0 then return end
  for _, field in ipairs({ 'admitted', ADMITTED[6], ADMITTED[7] }) do set(limit, field, 0) end
  limits.reconsider(id, load_user)
end

-- Return whether a task is refused because a limit at which it must not wait is full. The limits already have the
-- values that the task contains.
local function flags_of(task) return function(i) return lists.unpack(task.limits)[5 * i] end end
function limits.refuses(task, user_name)
  local flags = flags_of(task)
  for i, limit in ipairs(limits.of(task, true, user_name)) do
    if string.find(flags(i), 's', 1, true) and limits.free(limit) - limit.waiting - limit.admitted - limit.coming < 1 then return true end
  end
  return false
end

-- Count an accepted task at its limits. Return the limits at which only the newest task counts.
function limits.accept(task)
  local flags, newest = flags_of(task), {}
  for i, limit in ipairs(task.limit_list) do
    limit.coming = limit.coming + 1
    if string.find(flags(i), 'n', 1, true) then newest[#newest + 1] = limit end
  end
  return newest
end

local function count_waiting(limit, user, priority, amount)
  add(limit, 'waiting', amount)
  add(user, 'limited', amount)
  counters.count('limited', amount)
  counters.count('depth:' .. priority, amount)
end
function limits.stop_waiting(limit, user, task)
  for _, one in ipairs(limits.of(task)) do
    if one.queue == 1 then writes.zrem(keys.limit_waiting(one.id), task.id) end
  end
  count_waiting(limit, user, task.priority, -1)
end

local function wait_at(limit, user, task)
  arriving[#arriving + 1] = { limit = limit, user = user, task = task }
  count_waiting(limit, user, task.priority, 1)
end

-- Return whether a task of this priority may be admitted. A critical or urgent task is admitted even if the limit is
-- full, so that it does not wait behind other tasks. Each start checks the limit again.
local function can_admit(limit, priority)
  local free = limits.free(limit)
  return free > limit.admitted or ADMITTED[priority] and free > limit[ADMITTED[priority]] or false
end

-- Return the limit at which a queued task waits; nil if it is admitted to its user's queues.
local function place_of(task)
  local shared
  for _, limit in ipairs(limits.of(task)) do
    if limit.has_queue then
      if limits.free(limit) < 1 then return limit end
      shared = shared or limit
    elseif not can_admit(limit, task.priority) then
      return limit
    end
  end
  return shared
end

-- Queue a task that has limits.
function limits.enter(user, task, at_front)
  local limit = place_of(task)
  if limit then return wait_at(limit, user, task) end
  for _, one in ipairs(limits.of(task)) do
    add(one, 'admitted', 1)
    if ADMITTED[task.priority] then add(one, ADMITTED[task.priority], 1) end
  end
  if (task.raw.waits_at or '') ~= '' then redis.call('HSET', task.key, 'waits_at', '') end
  queues.enter(user, task, at_front)
end

-- Count an admitted task that leaves its user's queues.
function limits.remove_admitted(task)
  for _, limit in ipairs(limits.of(task)) do
    if not limit.has_queue then
      add(limit, 'admitted', -1)
      if ADMITTED[task.priority] then add(limit, ADMITTED[task.priority], -1) end
    end
  end
end

-- Remove a queued task that will not be started. Return whether it waited at a limit, and not in its user's queues.
function limits.leave(user, task)
  local id = task.raw.waits_at or ''
  if id == '' then
    limits.remove_admitted(task)
    return false
  end
  local limit = limits.load(id)
  limit.left[task.id] = true
  writes.zrem(keys.limit_queue(id, user.name), task.id)
  limits.stop_waiting(limit, user, task)
  return true
end

-- Count a task that is to start at each of its limits. If a limit is full, the task waits there. Return whether the
-- task starts.
function limits.begin(user, task)
  local found = limits.of(task)
  for _, limit in ipairs(found) do
    if limits.free(limit) < 1 then
      task.owner = user
      limits.touch(task)
      wait_at(limit, user, task)
      return false
    end
  end
  for _, limit in ipairs(found) do
    add(limit, 'running', 1)
    if limit.gap then set(limit, 'tat', math.max(limit.tat, clock.now) + limit.gap) end
  end
  return true
end

-- Subtract a task whose lease has ended from its limits. `difference` is its actual cost minus the expected cost. A
-- task that was given back without a run also returns its rate token.
function limits.finish(user, task, difference, is_run)
  for _, limit in ipairs(limits.of(task)) do
    if not task.is_companion then
      set(limit, 'running', math.max(0, limit.running - 1))
      if limit.gap and not is_run then set(limit, 'tat', limit.tat - limit.gap) end
    end
    if limit.has_queue and difference ~= 0 then
      limit.corrections = limit.corrections or {}
      limit.corrections[user.name] = (limit.corrections[user.name] or 0) + difference / user.weight
    end
  end
end

-- Add a user with its tasks of this lane to a limit, unless it is there. Invariant: its tag there is not lower than the
-- limit's virtual time.
function limits.stand(limit, user_name, lane)
  if limit.standing[lane .. user_name] then return end
  limit.standing[lane .. user_name] = true
  local tag = tonumber(calls.attempt('ZSCORE', keys.limit_tags(limit.id), user_name) or nil) or 0
  if calls.attempt('ZADD', keys.limit_users(limit.id, lane), 'NX', exact(math.max(limit.vtime, tag)), user_name) == 1 then
    add(limit, USERS[lane], 1)
    if limits.free(limit) > 0 then ring.note_growth() end
  end
end

-- Remove a user from a limit, because it has no more tasks of this lane there or is parked.
function limits.step_out(limit, user_name, lane)
  limit.standing[lane .. user_name] = nil
  writes.zrem(keys.limit_users(limit.id, lane), user_name)
  add(limit, USERS[lane], -1)
end

local function admit(limit)
  while limit.heads[1] and can_admit(limit, limit.heads[1].priority) do
    local task = table.remove(limit.heads, 1)
    writes.zrem(keys.limit_queue(limit.id, limit.owner.name), task.id)
    if task.state == 'queued' and task.raw.waits_at == limit.id and not limit.left[task.id] then
      task.owner = limit.owner
      count_waiting(limit, limit.owner, task.priority, -1)
      limits.enter(limit.owner, task, false)
    end
  end
end

-- Return the position of a task among its user's tasks at a limit: by priority, then by the moment at which it became
-- ready.
function limits.score(task) return (7 - task.priority) * queues.BAND + math.max(0, task.ready - clock.EPOCH) end

local function arrive(one)
  local limit, task = one.limit, one.task
  redis.call('HSET', task.key, 'waits_at', limit.id)
  writes.zadd(keys.limit_queue(limit.id, one.user.name), limits.score(task), task.id)
  if limit.has_queue then limits.stand(limit, one.user.name, queues.lane_of(task.priority)) end
  for _, another in ipairs(limits.of(task)) do
    if another.queue == 1 then writes.zadd(keys.limit_waiting(another.id), task.ready, task.id) end
  end
end

-- Write the limit's entries in the indexes. Invariant: `limited:{lane}` contains each limit that is not full and at
-- which users wait in this lane.
local function save_places(limit)
  local free, listed, at = limits.free(limit), 0, nil
  for _, lane in ipairs(LANES) do
    local is_listed = limit.has_queue and free > 0 and limit[USERS[lane]] > 0
    local was_listed = math.floor(limit.listed / BIT[lane]) % 2 == 1
    if is_listed then
      listed = listed + BIT[lane]
      if not was_listed or limit.had_turn then -- limits take turns
        counters.set('limit_turn', counters.shard.limit_turn + 1)
        writes.zadd(K['limited:' .. lane], counters.shard.limit_turn, limit.id)
      end
      if not was_listed then ring.note_growth() end
    elseif was_listed then
      writes.zrem(K['limited:' .. lane], limit.id)
    end
  end
  if listed ~= limit.listed then set(limit, 'listed', listed) end
  limit.had_turn = nil
  if limit.closed and limit.closed <= clock.now then set(limit, 'closed', nil) end
  if limit.waiting > 0 and not limit.has_queue and free > limit.admitted then
    at = clock.now -- the next call admits more tasks
  elseif (limit.waiting > 0 or limit.closed) and opens_at(limit) > clock.now then
    at = opens_at(limit)
  end
  if at ~= limit.held then
    set(limit, 'held', at)
    if at then
      counters.note_due(at)
      writes.zadd(K.throttled, at, limits.PREFIX .. limit.id)
    else
      writes.zrem(K.throttled, limits.PREFIX .. limit.id)
    end
  end
  if shown(limit) ~= limit.was_shown then
    limit.was_shown = shown(limit)
    if limit.was_shown then writes.zadd(K.limits, limit.waiting, limit.id) else writes.zrem(K.limits, limit.id) end
  end
end

local function save_limit(limit)
  if limit.waiting == 0 then -- no task waits, so no user is at the limit
    for _, lane in ipairs(LANES) do
      if limit[USERS[lane]] > 0 then
        writes.flush() -- a parked user may have returned to the limit in this call
        redis.call('DEL', keys.limit_users(limit.id, lane))
        set(limit, USERS[lane], 0)
      end
    end
    limit.standing = {}
  end
  for user_name, amount in pairs(limit.corrections or {}) do
    calls.attempt('ZADD', keys.limit_tags(limit.id), 'XX', 'INCR', exact(amount), user_name)
    for _, lane in ipairs(LANES) do
      if limit[USERS[lane]] > 0 then calls.attempt('ZADD', keys.limit_users(limit.id, lane), 'XX', 'INCR', exact(amount), user_name) end
    end
  end
  limit.corrections = nil
  if limit.changed.vtime then calls.attempt('ZREMRANGEBYSCORE', keys.limit_tags(limit.id), '-inf', exact(limit.vtime)) end
  save_places(limit)
  local is_used = limit.running + limit.waiting + limit.admitted > 0 or limit.closed
  local used_until = limit.gap and limit.tat > clock.now and limit.tat
  if is_used or used_until then
    local was_idle, time_left = limit.idle, exact(math.ceil(((used_until or 0) - clock.now) / 1000) + 1000)
    if is_used and was_idle then set(limit, 'idle', nil) elseif not is_used then set(limit, 'idle', 1) end
    local values, unset = records.changes(limit)
    if #values > 0 then redis.call('HSET', limit.key, unpack(values)) end
    if #unset > 0 then redis.call('HDEL', limit.key, unpack(unset)) end
    if not is_used then redis.call('PEXPIRE', limit.key, time_left) elseif was_idle then redis.call('PERSIST', limit.key) end
  else
    if not limit.is_new then redis.call('DEL', limit.key, keys.limit_tags(limit.id)) end
    by_id[limit.id] = nil -- so that the next use in this call reads the limit again
  end
  limit.is_new = false
  records.forget_changes(limit)
end

-- Admit tasks, let other tasks begin to wait, and write the changes. Call this before users are saved, because their
-- counts change too.
function limits.save()
  if not order[1] then return end
  for _, limit in ipairs(order) do
    if limit.heads[1] then admit(limit) end
  end
  for key, places in pairs(limits.returning) do
    for place in pairs(places) do writes.zrem(key, place) end
  end
  limits.returning = {}
  if arriving[1] then
    writes.flush() -- a user may have left a limit in this call
    for _, one in ipairs(arriving) do arrive(one) end
    arriving = {}
  end
  for _, limit in ipairs(order) do
    if next(limit.changed) or limit.corrections or limit.had_turn then save_limit(limit) end
  end
end
