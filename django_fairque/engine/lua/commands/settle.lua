#!lua flags=allow-oom
-- Report the outcomes of leased tasks and fetch the next tasks, in one call.
--
-- An outcome counts only with the current token of its task. If the reply was lost and the same outcome is reported
-- again, its token identifies it, and the reply is the same as the first time. An outcome is stale and changes nothing
-- if its token is old, or if it differs in kind from the first outcome with this token.
--
-- KEYS    base reply leases
-- ARGV    options, n, then n × (id, token, kind, took us or '', delay us or '', body, trace),
--         limit (0..1000), worker, lease (us), woken (0/1; 2: it has waited since it was sent, 3: and is sent again), begin,
--         until, users, steal, batch sizes, limits of lanes (as pop)
--         kind: finish fail later fault discard release crash poison overdue; of a Retry with limits kind:max:deadline (us), each may be ''
-- REPLY   now, look, virtual time, place and news as pop.lua, codes (one digit per outcome: 0 stale, 1 finished, 2 retried, 3 dead, 4 released,
--         5 canceled), then the leases as pop.lua
-- COST    3 commands per outcome, 2 per task name (4 with a release), and those of a pop
-- include numbers options counters clock slot statistics outbox history users queues saving bounds task_record limits moves quarantine leases user_periods due_work turns fetch runs task_names
local STRIDE = 7
local size = tonumber(ARGV[FIRST_ARG])
local ended, codes, seen, given_back = {}, {}, {}, false

local STALE, FINISHED, RETRIED, DEAD, RELEASED, CANCELED = '0', '1', '2', '3', '4', '5'

-- Return the text that a settled task keeps in `done`: its token and, unless the kind is `finish`, the kind and the
-- reply code.
local function mark(task, code)
  return task.kind and table.concat({ task.token_text, task.kind, code }, ':') or task.token_text
end

-- Return the reply code that the first report of this outcome got. Return STALE if the lease was settled with an
-- outcome of another kind, or is an old lease.
local function code_of_settled(task, token_text, kind)
  local settled, of_kind, code = (task.done or ''):match('^(%d+):?(%a*):?(%d*)$')
  if settled ~= token_text then return STALE end
  if of_kind == '' then of_kind, code = 'finish', FINISHED end
  return of_kind == kind and code ~= '' and code or STALE
end

local user_names, finished_ids = {}, {}
for i = 1, size do
  local at = FIRST_ARG + 1 + (i - 1) * STRIDE
  if ARGV[at + 2] == 'finish' then finished_ids[#finished_ids + 1] = ARGV[at] end
end
if finished_ids[1] then runs.confirm(finished_ids) end
for i = 1, size do
  local at = FIRST_ARG + 1 + (i - 1) * STRIDE
  local id, token_text, kind = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  local is_finish, most, last = kind == 'finish', nil, nil
  if string.find(kind, ':', 1, true) then kind, most, last = kind:match('^(%a+):(%d*):(%d*)$') end
  local task = not seen[id] and (is_finish and runs.read or task_record.read)(id)
  if task and task.state == 'started' and task.token_text == token_text then
    seen[id] = true -- set only here: a stale outcome of an earlier run of this task may come before this one
    task.index, task.took, task.body = i, tonumber(ARGV[at + 3]), ARGV[at + 5]
    if not is_finish then
      task.kind, task.delay, task.report = kind, tonumber(ARGV[at + 4]), ARGV[at + 6]
      task.most, task.last = tonumber(most), tonumber(last)
    end
    ended[#ended + 1], user_names[#user_names + 1] = task, task.user
  else
    codes[i] = task and code_of_settled(task, token_text, kind) or STALE
  end
end
users.preload(user_names)
for _, task in ipairs(ended) do
  local kind = task.kind
  task.owner = users.load(task.user)
  user_periods.touch(task.owner)
  if kind then
    given_back = given_back or kind == 'release' or kind == 'crash'
    if kind == 'overdue' or kind == 'crash' then quarantine.touch() end
    moves.touch(task)
  else
    moves.touch_lease(task)
    if task.limits then limits.touch(task) end
    bounds.note_result(task.owner, task.body)
  end
end
if #ended > 0 then
  statistics.touch_minute()
  task_names.touch()
end
bounds.plan()
slot.touch_all()
bounds.remove_planned()
if given_back then queues.order_returning(ended) end

-- A task that raises Retry with a delay below 1 second runs again at once, `FREE_RETRIES` times in a row, and then once
-- a second. After `MOST_IMMEDIATE` times it becomes a dead letter. Otherwise such a task would occupy a worker all the
-- time.
local IMMEDIATE, FREE_RETRIES, MOST_IMMEDIATE = 1e6, 10, 1000

-- Make the task a dead letter even if it has retries left. `why` is written before the error.
local function give_up(task, failure, why)
  if not task.is_counted then
    counters.count('failed', 1)
    statistics.tally('failed', 1)
  end
  moves.to_dead(task.owner, task, failure, why .. ': ' .. task.body, task.report, 'done', mark(task, DEAD))
  return DEAD
end

-- Return, as text, the limit of Retry that the task has reached, or nil if it has reached none.
local function limit_of_retry(task)
  if task.most and (numbers.read(task.raw.snoozes) or 0) >= task.most then
    return 'Retry was raised more often than its max allows, ' .. numbers.exact(task.most)
  end
  if task.last and clock.now + task.delay > task.last then return 'the next attempt would start after the deadline of Retry' end
  return nil
end

-- Schedule the next attempt after the task's delay. If the task would expire before that, make it a dead letter.
local function run_later(task, retries, deliveries, ...)
  if task.raw.expires and clock.now + task.delay >= numbers.read(task.raw.expires) then
    return give_up(task, 'expired', 'the next attempt would start after expires')
  end
  if task.most then redis.call('HSET', task.key, 'snoozes', numbers.exact((numbers.read(task.raw.snoozes) or 0) + 1)) end
  history.add(task.id, 'failed', task.worker, task.body, task.report, task)
  if task.is_suspect then redis.call('HSET', task.key, 'suspect', '') end -- its process survived, so the task is not suspected of ending processes any more
  moves.to_scheduled(task.owner, task, clock.now + task.delay, 'retries', numbers.exact(retries), 'deliveries', numbers.exact(deliveries), 'done', mark(task, RETRIED), 'again', 1, ...)
  counters.count('retried', 1)
  return RETRIED
end

local function schedule_retry(task, retries, ...) return run_later(task, retries, 0, ...) end

local handlers = {}

function handlers.fail(task)
  leases.close(task.owner, task, task.took, true)
  counters.count('failed', 1)
  statistics.tally('failed', 1)
  task.is_counted = true
  local limit = limit_of_retry(task)
  if limit then return give_up(task, 'failed', limit) end
  -- The worker sends a failure without a delay if the task must not be retried. With a delay, the task is retried while
  -- it has retries left.
  if task.delay and task.retries < task.max_retries then return schedule_retry(task, task.retries + 1) end
  moves.to_dead(task.owner, task, 'failed', task.body, task.report, 'done', mark(task, DEAD))
  return DEAD
end

-- The task exceeded its hard time limit, and its process was killed.
function handlers.overdue(task)
  quarantine.begin(task)
  return handlers.fail(task)
end

-- The task raised Retry. This uses none of its retries.
function handlers.later(task)
  leases.close(task.owner, task, task.took, true)
  local limit = limit_of_retry(task)
  if limit then return give_up(task, 'failed', limit) end
  local before = tonumber(task.raw.immediate)
  if task.delay >= IMMEDIATE then
    if not before then return schedule_retry(task, task.retries) end
    return schedule_retry(task, task.retries, 'immediate', 0)
  end
  local immediate = (before or 0) + 1
  if immediate > MOST_IMMEDIATE then
    return give_up(task, 'failed', 'Retry was raised ' .. MOST_IMMEDIATE .. ' times in a row with a delay below 1 second')
  end
  if immediate > FREE_RETRIES then task.delay = IMMEDIATE end
  return schedule_retry(task, task.retries, 'immediate', numbers.exact(immediate))
end

-- The worker itself failed. The start counts as a delivery. After the allowed number of such deliveries in a row, the
-- task fails.
function handlers.fault(task)
  local most = tonumber(task.raw.max_deliveries) or options.max_deliveries
  if task.deliveries >= most then return handlers.fail(task) end
  leases.close(task.owner, task, task.took, true)
  return run_later(task, task.retries, task.deliveries)
end

function handlers.discard(task)
  leases.close(task.owner, task, task.took, true)
  history.add(task.id, 'discarded', task.worker, task.body, task.report, task)
  moves.to_ended(task, 'canceled', options.result_ttl, 'done', mark(task, CANCELED))
  counters.count('canceled', 1)
  return CANCELED
end

function handlers.poison(task)
  leases.close(task.owner, task, task.took, true)
  moves.to_dead(task.owner, task, 'poisoned', task.body, task.report, 'done', mark(task, DEAD))
  return DEAD
end

local function has_begun(task) return (task.took or 0) > 0 end

local function give_back(task, kind)
  local code = leases.give_back(task.owner, task, kind, task.body, task.report, kind == 'released' and task.delay or nil)
  redis.call('HSET', task.key, 'done', mark(task, code), unpack(has_begun(task) and { 'again', 1 } or {}))
  return code
end

function handlers.release(task) return give_back(task, 'released') end

function handlers.crash(task) return give_back(task, 'crashed') end

local finished = 0
local function finish(task)
  local sums = leases.close(task.owner, task, task.took, true)
  sums.finished, finished = sums.finished + 1, finished + 1
  moves.to_ended(task, 'finished', options.result_ttl, 'done', mark(task, FINISHED), bounds.result_fields(task.owner, task, task.body))
  return FINISHED
end

local at = FIRST_ARG + 1 + size * STRIDE
local limit = tonumber(ARGV[at])
for _, task in ipairs(ended) do
  local kind, code = task.kind, task.kind and handlers[task.kind](task) or finish(task)
  if kind ~= 'release' then
    leases.note_attempt(task, not kind and 'finished' or (kind ~= 'later' and kind ~= 'discard' or code == DEAD) and 'failed')
  elseif has_begun(task) then
    task_names.note_sla(task)
  end
  codes[task.index] = code
end
if finished > 0 then
  counters.count('finished', finished)
  statistics.tally('finished', finished)
end
if #ended > 0 then
  -- The users' records are written once, after the next tasks are handed out. A repeated call hands out no tasks, so it
  -- writes the records here.
  if limit > 0 and redis.call('EXISTS', K.reply) == 0 then saving.place_users() else saving.commit() end
end

due_work.start_if_due()
local reply = { numbers.exact(clock.now), '', '', '', '', table.concat(codes) }
local served_lists, has_handed_out = fetch.hand_out(reply, limit, at + 1, size == 0)
if has_handed_out then runs.keep(turns.taken, ARGV[at + 1], clock.now) end
reply[2], reply[3], reply[4], reply[5] = numbers.exact(counters.shard.look), numbers.exact(counters.shard.vtime), fetch.next_place(served_lists, limit, at + 1), outbox.has_posted and '1' or '0'
return reply
