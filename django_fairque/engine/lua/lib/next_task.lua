-- Choose the next task of a user: the most urgent one, or for a batch another task of the same name.
--
-- include numbers calls keys options clock alerts records queues limits moves windows

local next_task = {}

local READY = queues.READY

-- `skipped`: the number of users whose next tasks have expired and are not removed by this call. Other users are served
-- instead.
each_call(function() next_task.expired, next_task.dropped_ids, next_task.skipped = {}, {}, 0 end)

local WEIGHTS = { 0.2, 0.4, 0.6, 0.8, 1.0 }

-- Return the priority of the user's most urgent task. Critical tasks come first. Otherwise the task with the highest
-- score, weight × (waited + head start), wins (Kleinrock 1964 with an offset). A priority is examined only if its
-- oldest task could win: no task of the user has waited since before `since`.
local function most_urgent(user)
  if user[READY[6]] > 0 then return 6 end
  local best, best_earned
  for priority = 5, 1, -1 do
    local ready = user[READY[priority]]
    if ready > 0 and ready == user.ready then return priority end -- the user has no tasks of other priorities
    if ready > 0 then
      local bound = WEIGHTS[priority] * (math.max(0, clock.now - (user.since or 0)) + options.head_start)
      if not best or bound > best_earned then
        local id, ready = windows.next(user, priority)
        local earned = id and WEIGHTS[priority] * (math.max(0, clock.now - ready) + options.head_start) or -1
        if not best or earned > best_earned then best, best_earned = priority, earned end
      end
    end
  end
  return best
end

local UNREADABLE = 'its payload was overwritten or removed on the server, and with it the task\'s name and its options'
local function bury_unreadable(task)
  local created = task.raw.created or clock.now_text
  moves.to_dead(task.owner, task, 'poisoned', UNREADABLE, '', 'user', task.user, 'created', created, 'priority', numbers.exact(task.priority))
  alerts.add('died', task, UNREADABLE)
end

-- Return a queued task that `task_record.read` can't read, because other software has overwritten or removed its
-- payload, and with it its head. Known are only its position in its user's queue, and the changes in its record. Return
-- nil if nothing is left of the task, or if its record has another type.
local function unreadable_task(id, user, priority)
  local key = keys.task(id)
  local flat, raw = calls.attempt('HGETALL', key), {}
  if not flat or #flat == 0 and redis.call('EXISTS', keys.payload(id)) == 0 then return nil end
  for i = 1, #flat, 2 do raw[flat[i]] = flat[i + 1] end
  if raw.state and raw.state ~= 'queued' or raw.user and raw.user ~= user.name then return nil end
  return {
    id = id, key = key, raw = raw, state = 'queued', user = user.name, owner = user, priority = priority,
    ready = clock.now, bury = bury_unreadable, waited = raw.waited, size = raw.size and numbers.read(raw.size), died = raw.died and numbers.read(raw.died) or 0,
  }
end

-- Take one task of this user: in lane normal the most urgent one, in other lanes the one that has waited longest.
-- Returns nil if the user has no task after all (its counters are then corrected), or is skipped. One user may use up
-- only a quarter of the expired tasks that a call may remove, so that users with only expired tasks don't delay the
-- others.
function next_task.take(user, lane)
  local buried = 0
  while true do
    local priority = queues.CLASSES[lane] or most_urgent(user)
    if not priority or user[READY[priority]] <= 0 then return nil end
    local id = windows.next(user, priority)
    if user.is_unreadable then
      user.is_skipped = true
      records.set(user, 'tag', user.tag) -- marks the user as changed, so that it is saved
      return nil
    elseif not id then
      queues.add_ready(user, priority, -user[READY[priority]])
    else
      local window = user.windows[priority]
      local task = windows.read_at(window, window.at)
      local is_queued = task and task.state == 'queued' and task.user == user.name
      local is_live = is_queued and not (task.expires and task.expires <= clock.now)
      if not (is_live and not task.limits) and (buried >= options.sweep_limit / 4 or #next_task.expired + #next_task.dropped_ids >= options.sweep_limit) then
        user.is_skipped, next_task.skipped = true, next_task.skipped + 1
        return nil
      end
      window.at, buried = window.at + 1, buried + 1
      queues.add_ready(user, priority, -1)
      if is_queued then task.owner = user end
      if is_queued and task.limits then
        if not is_live then limits.touch(task) end
        limits.remove_admitted(task)
      end
      if is_live and (not task.limits or limits.begin(user, task)) then return task, priority end
      local unreadable = not task and unreadable_task(id, user, priority)
      if is_queued and not is_live or unreadable then
        next_task.expired[#next_task.expired + 1] = unreadable or task
      elseif not is_live then
        next_task.dropped_ids[#next_task.dropped_ids + 1] = id -- this entry has no task, so it is removed
      end
    end
  end
end

-- Return another task of the same name for a batch, or nil. Critical tasks keep their order: the search ends at the
-- first task of another name. With other priorities the search skips such tasks, and ends after twice as many tasks as
-- the batch has room for.
function next_task.take_companion(user, search)
  local window = windows.get(user, search.priority)
  window.step = math.max(window.step, math.min(256, search.left))
  while search.left > 0 do
    local place = math.max(search.place, window.at)
    search.place, search.left = place + 1, search.left - 1
    if not windows.id_at(user, search.priority, window, place) then return nil end
    local task = not window.out[place] and windows.read_at(window, place)
    local is_next = task and task.raw.name == search.name and task.limits == search.limits and task.state == 'queued' and task.user == user.name
      and not (task.expires and task.expires <= clock.now)
    if is_next then
      if place == window.at then window.at = place + 1 else window.out[place] = true end
      queues.add_ready(user, search.priority, -1)
      task.owner = user
      if task.limits then limits.remove_admitted(task) end
      return task
    elseif search.priority == 6 then
      return nil
    end
  end
end
