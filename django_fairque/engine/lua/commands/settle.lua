#!lua flags=allow-oom
-- Report what became of leased tasks and fetch the next ones, in one call.
--
-- An outcome counts only with the task's current token. One that was reported before (the reply was lost) is
-- recognised by its token and answered as the first time; any other, of an old token or of another kind, is stale and
-- changes nothing.
--
-- KEYS    base reply leases
-- ARGV    options, n, then n × (id, token, kind, took us or '', delay us or '', body, trace),
--         limit (0..1000), worker, lease (us), woken (0/1; 2: it has waited since it was sent, 3: and is sent again), begin,
--         until, users, steal, batch sizes (as pop)
--         kind: finish fail later discard release crash poison overdue
-- REPLY   now, look, virtual time, place and news as pop.lua, codes (one digit per outcome: 0 stale, 1 finished, 2 retried, 3 dead, 4 released,
--         5 canceled), then 19 values per lease
-- COST    3 commands per outcome and 3 per user, and those of a pop
-- include base ring organization user recent_usage task dependents due_work list_credit select_next fetch
local STRIDE = 7
local size = tonumber(ARGV[A])
local ended, codes, seen, given_back = {}, {}, {}, false

local STALE, FINISHED, RETRIED, DEAD, RELEASED, CANCELED = 0, 1, 2, 3, 4, 5

-- What the end of a run needs of its task; most tasks finish, so this is half of what `read_task` reads.
local function read_run(id)
  local key = task_key(id)
  local found = attempt('HMGET', key, 'state', 'user', 'priority', 'token', 'done', 'worker', 'started', 'cost', 'ready',
    'created', 'waited', 'beside', 'companion', 'size')
  if not found then return nil end
  local priority = number(found[3])
  if not (found[1] and found[2] and priority and priority >= 1 and priority <= 6) then return nil end
  return {
    id = id, key = key, state = found[1], user = found[2], priority = priority, token = number(found[4]),
    done = found[5], worker = found[6] or '', started = number(found[7]),
    cost = number(found[8]), ready = number(found[9]) or number(found[10]) or now, waited = found[11],
    how = number(found[12]) or 0, is_companion = found[13] == '1', size = number(found[14]),
    u = false, index = 0, took = false, body = '',
  }
end

-- What a settled task remembers of its outcome, in `done`: its token and, if it was another than `finish`, kind and answer.
local function mark(t, code) return t.kind and table.concat({ exact(t.token), t.kind, code }, ':') or exact(t.token) end

-- The code that this very outcome was answered with; STALE if the lease was settled by one of another kind, or is an old one.
local function code_of_settled(t, token, kind)
  local settled, of_kind, code = (t.done or ''):match('^(%d+):?(%a*):?(%d*)$')
  if tonumber(settled) ~= token then return STALE end
  if of_kind == '' then of_kind, code = 'finish', FINISHED end
  return of_kind == kind and tonumber(code) or STALE
end

for i = 1, size do
  local at = A + 1 + (i - 1) * STRIDE
  local id, token, kind = ARGV[at], tonumber(ARGV[at + 1]), ARGV[at + 2]
  local is_finish = kind == 'finish'
  local t = not seen[id] and (is_finish and read_run or read_task)(id)
  if t and t.state == 'started' and t.token == token then
    seen[id] = true -- not of a stale one: it may be of another run of that id, before this one
    t.u, t.index, t.took, t.body = load_user(t.user), i, tonumber(ARGV[at + 3]), ARGV[at + 5]
    if is_finish then
      touch_lease(t)
    else
      t.kind, t.delay, t.report = kind, tonumber(ARGV[at + 4]), ARGV[at + 6]
      given_back = given_back or kind == 'release' or kind == 'crash'
      if kind == 'overdue' then touch(P .. 'quarantine') end
      touch_moves(t)
    end
    ended[#ended + 1] = t
  else
    codes[i] = t and code_of_settled(t, token, kind) or STALE
  end
end
if #ended > 0 then touch_minute() end
touch_all()
if given_back then order_returning(ended) end

-- A task that asks for another run in less than a second is rerun at once this often in a row, then once a second, and in the
-- end it is a dead letter: a task that does nothing else would take a worker for itself.
local IMMEDIATE, FREE_RETRIES, MOST_IMMEDIATE = 1e6, 10, 1000

local function retry_later(t, retries, ...)
  remember(t.id, 'failed', t.worker, t.body, t.report)
  if t.is_suspect then redis.call('HSET', t.key, 'suspect', '') end -- its process outlived it
  to_scheduled(t.u, t, now + t.delay, 'retries', exact(retries), 'deliveries', 0, 'done', mark(t, RETRIED), ...)
  count('retried', 1)
  return RETRIED
end

local handlers = {}

function handlers.fail(t)
  end_lease(t.u, t, t.took, true)
  count('failed', 1)
  tally('failed', 1)
  if t.delay and t.retries < t.max_retries then return retry_later(t, t.retries + 1) end
  to_dead(t.u, t, 'failed', t.body, t.report, 'done', mark(t, DEAD))
  return DEAD
end

-- It did not end at its hard limit, and its process was killed with all that ran next to it: for a while, tasks of its name and
-- user run alone, on all workers.
local QUARANTINE = 600e6
function handlers.overdue(t)
  local key = P .. 'quarantine'
  for _, ended in ipairs(redis.call('ZRANGEBYSCORE', key, '-inf', now_text, 'LIMIT', 0, 100)) do zrem(key, ended) end
  zadd(key, now + QUARANTINE, t.user .. '\0' .. (t.raw.name or ''))
  set_stat('quarantine', now + QUARANTINE)
  return handlers.fail(t)
end

function handlers.later(t)
  end_lease(t.u, t, t.took, true)
  local before = tonumber(t.raw.immediate)
  if t.delay >= IMMEDIATE then
    if not before then return retry_later(t, t.retries) end
    return retry_later(t, t.retries, 'immediate', 0)
  end
  local immediate = (before or 0) + 1
  if immediate > MOST_IMMEDIATE then
    local reason = 'Retry was raised ' .. MOST_IMMEDIATE .. ' times in a row with a delay below 1 second: ' .. t.body
    to_dead(t.u, t, 'failed', reason, t.report, 'done', mark(t, DEAD))
    count('failed', 1)
    tally('failed', 1)
    return DEAD
  end
  if immediate > FREE_RETRIES then t.delay = IMMEDIATE end
  return retry_later(t, t.retries, 'immediate', exact(immediate))
end

function handlers.discard(t)
  end_lease(t.u, t, t.took, true)
  remember(t.id, 'discarded', t.worker, t.body, t.report)
  to_ended(t, 'canceled', result_ttl, 'done', mark(t, CANCELED))
  count('canceled', 1)
  return CANCELED
end

function handlers.poison(t)
  end_lease(t.u, t, t.took, true)
  to_dead(t.u, t, 'poisoned', t.body, t.report, 'done', mark(t, DEAD))
  return DEAD
end

local function give_back(t, kind)
  local code = return_task(t.u, t, kind, t.body, t.report, kind == 'released' and t.delay or nil)
  redis.call('HSET', t.key, 'done', mark(t, code))
  return code
end

function handlers.release(t) return give_back(t, 'released') end

function handlers.crash(t) return give_back(t, 'crashed') end

local function finish(t)
  end_lease(t.u, t, t.took, true)
  if t.body ~= '' then
    to_ended(t, 'finished', result_ttl, 'done', mark(t, FINISHED), 'result', t.body)
  else
    to_ended(t, 'finished', result_ttl, 'done', mark(t, FINISHED))
  end
  add(t.u, 'finished', 1)
  count('finished', 1)
  tally('finished', 1)
  return FINISHED
end

for _, t in ipairs(ended) do codes[t.index] = t.kind and handlers[t.kind](t) or finish(t) end
if #ended > 0 then commit() end

start_due_if_needed()
local reply = { exact(now), '', '', '', '', table.concat(codes) }
local at = A + 1 + size * STRIDE
local limit = tonumber(ARGV[at])
fetch(reply, limit, at + 1, size == 0)
reply[2], reply[3], reply[4], reply[5] = exact(stat.look), exact(stat.vtime), next_place(limit, at + 1), posted and '1' or '0'
return reply
