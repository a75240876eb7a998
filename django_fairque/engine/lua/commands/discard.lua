#!lua flags=allow-oom
-- Discard dead letters: their tasks change from FAILED to CANCELED. Tasks that depend on a dead letter are canceled
-- too, except tasks with the policy to run anyhow. Or begin to move dead letters to another queue
-- (`engine/acts/moves.py`): they leave this queue in the same way, except those that belong to a run or depend on other
-- tasks, or on which other tasks depend.
--
-- KEYS    base reply
-- ARGV    options, n (1..1000), then n × (id, how many times it had died), and of an act on many tasks its id, turn and new cursor (`lib/acts.lua`), and 'moved' for a move
-- REPLY   one digit per entry: 0 no such dead letter (any more), 1 discarded. `-` if another worker has taken this step of the act: nothing is changed
-- COST    5 commands an entry
-- include keys options counters clock slot writes history records users saving task_record moves dependents acts
local stored = redis.call('GET', K.reply)
if stored then return stored end
local size, codes, tasks, seen = tonumber(ARGV[FIRST_ARG]), {}, {}, {}
local act = acts.read(FIRST_ARG + 1 + size * 2)
if act and act.is_late then return '-' end
local kind = ARGV[FIRST_ARG + 4 + size * 2] or 'discarded'
local function can_leave(task) return kind == 'discarded' or not (task.raw.parents or task.raw.run or task.waited) end
for i = 1, size do
  local id = ARGV[FIRST_ARG + 2 * i - 1]
  local task = not seen[id] and task_record.read(id)
  codes[i] = task and task.state == 'failed' and task.died == tonumber(ARGV[FIRST_ARG + 2 * i]) and can_leave(task) and 1 or 0
  if codes[i] == 1 then
    seen[id] = true -- set only here: an entry with an old number of deaths may come before the current entry of the same task
    slot.touch(keys.history(task.id))
    task.owner = users.load(task.user)
    tasks[#tasks + 1] = task
  end
end
slot.touch_all()
for _, task in ipairs(tasks) do
  history.add(task.id, kind, '', act and act.reason or '', '')
  moves.to_ended(task, 'canceled', act and math.max(acts.UNDO_TTL, options.result_ttl) or options.result_ttl)
  writes.zrem(K['state:failed'], task.id)
  counters.count('lying:' .. (task.raw.failure or 'failed'), -1)
  records.add(task.owner, 'dead', -1)
  if act then redis.call('HSET', task.key, 'act', act.id) end
  if kind == 'discarded' then counters.count('discarded', 1) end
end
if act then acts.save_changed(act, tasks, size) end
saving.commit()
dependents.resolve(options.sweep_limit)
return saving.finish(table.concat(codes))
