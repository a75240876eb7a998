-- Limits for each user on the data of its ended tasks: the bytes of its results, and the number of dead letters that
-- are kept complete.
--
-- A user's `result_bytes` is the sum of the `result_size` of its tasks, and `dead` is the number of its dead letters.
-- `results:{user}` contains the user's tasks with a counted result, ordered by their ends. A small result is not
-- counted, because the task's record takes as much memory.
--
-- include heads numbers calls keys options counters clock slot writes records

local bounds = {}

local COUNTED = 1000 -- a result of at most this many bytes does not count towards `max_result_bytes`
local MOST_REMOVED = calls.CHUNK -- the largest number of a user's results that one call removes
local SHORT_REASON, SHORT_PAYLOAD = 500, 1000 -- bytes: `bounds.shorten` cuts off a longer reason, and removes a larger payload

local function results_key(user_name) return P .. 'results:' .. user_name end

local plans -- by user: the bytes of its new results, the old results to remove, and the bytes by which the new results are still too large
each_call(function() plans = nil end)

-- Call this for each finishing task, before the first write.
function bounds.note_result(user, body)
  if #body <= COUNTED then return end
  plans = plans or {}
  local plan = plans[user]
  if not plan then
    plan = { added = 0, removed = {}, excess = 0 }
    plans[user] = plan
    slot.touch(results_key(user.name))
  end
  plan.added = plan.added + #body
end

-- Choose the user's oldest results that must be removed to make room. This only reads.
function bounds.plan()
  for user, plan in pairs(plans or {}) do
    plan.excess = options.max_result_bytes > 0 and math.max(0, user.result_bytes + plan.added - options.max_result_bytes) or 0
    local ids = plan.excess > 0 and calls.attempt('ZRANGE', results_key(user.name), 0, MOST_REMOVED - 1) or {}
    for _, id in ipairs(ids) do
      if plan.excess <= 0 then break end
      local size = numbers.read(calls.attempt('HGET', keys.task(id), 'result_size') or nil)
      if size then
        plan.removed[#plan.removed + 1] = { id = id, size = size }
        plan.excess = plan.excess - size
      else
        writes.zrem(results_key(user.name), id)
      end
    end
  end
end

function bounds.remove_planned()
  for user, plan in pairs(plans or {}) do
    for _, result in ipairs(plan.removed) do
      redis.call('HSET', keys.task(result.id), 'result_removed', numbers.exact(result.size))
      redis.call('HDEL', keys.task(result.id), 'result', 'result_size')
      bounds.forget_result(user, result.id, result.size)
      counters.count('results_removed', 1)
    end
  end
end

-- Return the fields of a finished task that store its result. If there is no room even after the removal of older
-- results, the result is not stored.
function bounds.result_fields(user, task, body)
  if body == '' then return end
  local size = #body
  if size <= COUNTED then return 'result', body end
  local plan = plans[user]
  if plan.excess > 0 then
    plan.excess = plan.excess - size
    counters.count('results_removed', 1)
    return 'result_removed', numbers.exact(size)
  end
  writes.zadd(results_key(user.name), clock.now, task.id)
  records.add(user, 'result_bytes', size)
  return 'result', body, 'result_size', numbers.exact(size)
end

function bounds.touch_result(user_name) slot.touch(results_key(user_name)) end

-- Subtract a result that is gone, or is removed by this call, from the user's bytes.
function bounds.forget_result(user, id, size)
  writes.zrem(results_key(user.name), id)
  records.add(user, 'result_bytes', -size)
end

-- Repair the index `results:{user}`: it contains the task if the task has a counted result.
function bounds.repair_result(user_name, id, task)
  local is_there = task and task.state == 'finished' and task.user == user_name and task.raw.result_size
  local key = results_key(user_name)
  return is_there and redis.call('ZADD', key, task.raw.ended or clock.now_text, id) or redis.call('ZREM', key, id)
end

-- Return whether further dead letters of this user are kept only in a short form.
function bounds.is_full(user) return options.max_dead_letters > 0 and user.dead >= options.max_dead_letters end

-- Shorten a task that becomes a dead letter: remove its earlier attempts, their log lines, and a large payload. Its
-- field `short` is the number of bytes of the removed payload. Returns the reason in the form that is stored.
function bounds.shorten(task, reason)
  local text = calls.attempt('GETRANGE', keys.payload(task.id), 0, heads.MOST - 1)
  local _, payload_at = heads.read(text)
  local size, removed = (calls.attempt('STRLEN', keys.payload(task.id)) or 0) - (payload_at or 1) + 1, 0
  if size > SHORT_PAYLOAD then
    removed = size
    redis.call('SET', keys.payload(task.id), payload_at and string.sub(text, 1, payload_at - 1) or '')
  end
  redis.call('HSET', task.key, 'short', numbers.exact(removed))
  redis.call('DEL', keys.history(task.id), P .. 'logs:' .. task.id)
  counters.count('dead_letters_shortened', 1)
  if #reason > SHORT_REASON then -- cut the reason between two UTF-8 characters
    local last = SHORT_REASON
    while last > 0 and string.find(reason, '^[\128-\191]', last + 1) do last = last - 1 end
    reason = string.sub(reason, 1, last) .. '…'
  end
  return reason .. ' [kept in a short form: the user has ' .. numbers.exact(options.max_dead_letters) .. ' complete dead letters, as many as max_dead_letters]'
end
