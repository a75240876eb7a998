-- Acts on many tasks (engine/acts/acts.py): the progress of an act on this shard, in `act_progress:{id}`, and the tasks
-- that it has changed and that must still be undone or have not ended yet, in `act_tasks:{id}`. The record of a task
-- that an act has canceled contains the act's id (`act`), and so do the records of dependents that were canceled with
-- the task.
--
-- Each step contains the number of the step that its caller has read (`turn`). So if two workers take the same step,
-- only the first changes anything, and a worker that was killed has taken a whole step or none.
--
-- include calls numbers slot

local acts = {}

acts.UNDO_TTL = 86400e6 -- us: for this time a task that an act has ended is kept
local KEPT = 30 * 86400000 -- ms: an act with a slow pace takes days

-- Read the step that ARGV names from `at` on: act (empty: none), turn, new cursor. Returns nil if the call belongs to no act.
function acts.read(at)
  local id = ARGV[at]
  if not id or id == '' then return nil end
  local act = { id = id, reason = 'act ' .. id, progress = P .. 'act_progress:' .. id, tasks = P .. 'act_tasks:' .. id, turn = tonumber(ARGV[at + 1]), cursor = ARGV[at + 2] }
  act.is_late = (tonumber(redis.call('HGET', act.progress, 'turn')) or 0) ~= act.turn
  acts.touch(id)
  return act
end

-- Save a step. In `counts`, fields and amounts alternate.
function acts.save(act, counts)
  redis.call('HSET', act.progress, 'turn', numbers.exact(act.turn + 1), 'cursor', act.cursor)
  for i = 1, #counts, 2 do redis.call('HINCRBY', act.progress, counts[i], counts[i + 1]) end
  acts.keep(act, KEPT)
end

-- Save a step that selected `size` tasks and has changed these tasks.
function acts.save_changed(act, tasks, size)
  local ids = {}
  for i, task in ipairs(tasks) do ids[i] = task.id end
  acts.append(act, ids)
  acts.save(act, { 'done', #ids, 'skipped', size - #ids })
end

function acts.append(act, ids)
  for first = 1, #ids, calls.CHUNK do redis.call('RPUSH', act.tasks, unpack(ids, first, math.min(first + calls.CHUNK - 1, #ids))) end
end

function acts.touch(id)
  slot.touch(P .. 'act_progress:' .. id)
  slot.touch(P .. 'act_tasks:' .. id)
end

-- Record that a dependent was canceled together with a task of an act. Nothing is recorded if the data of the act has
-- expired, because the act can't be undone any more.
function acts.add_dependent(id, task)
  if redis.call('EXISTS', P .. 'act_tasks:' .. id) == 0 then return end
  redis.call('RPUSH', P .. 'act_tasks:' .. id, task.id)
  redis.call('HSET', task.key, 'act', id)
  redis.call('HINCRBY', P .. 'act_progress:' .. id, 'dependents', 1)
end

-- Keep the data of an act on this shard for `ttl` milliseconds.
function acts.keep(act, ttl)
  redis.call('PEXPIRE', act.progress, numbers.exact(ttl))
  redis.call('PEXPIRE', act.tasks, numbers.exact(ttl))
end
