#!lua flags=allow-oom
-- Report what became of leased tasks and fetch the next ones, in one call.
--
-- An outcome counts only with the task's current token. One that was reported before (the reply was lost) is
-- recognised by its token and answered as the first time; any other old token is stale and changes nothing.
--
-- KEYS    base reply leases
-- ARGV    options, n, then n × (id, token, kind, took us or '', delay us or '', body, trace),
--         limit (0..1000), worker, lease (us), woken (0/1; 2: it has waited since it was sent, 3: and is sent again), users,
--         steal (as pop)
--         kind: finish fail later discard release crash poison
-- REPLY   now, look, virtual time and news as pop.lua, codes (one digit per outcome: 0 stale, 1 finished, 2 retried, 3 dead, 4 released,
--         5 canceled), then 18 values per lease
-- COST    3 commands per outcome and 3 per user, and those of a pop
-- include base ring group user lately task deps maintain take fetch
local STRIDE = 7
local size = tonumber(ARGV[A])
local ended, codes, seen, given_back = {}, {}, {}, false

-- What the end of a run needs of its task; most tasks finish, so this is half of what `read_task` reads.
local function read_run(id)
  local key = task_key(id)
  local found = redis.call('HMGET', key, 'state', 'user', 'priority', 'token', 'done', 'worker', 'started', 'cost', 'ready',
    'created', 'waited')
  local priority = tonumber(found[3])
  if not (found[1] and found[2] and priority and priority >= 1 and priority <= 6) then return nil end
  return {
    id = id, key = key, state = found[1], user = found[2], priority = priority, token = tonumber(found[4]),
    done = tonumber(found[5]), worker = found[6] or '', started = tonumber(found[7]),
    cost = tonumber(found[8]), ready = tonumber(found[9]) or tonumber(found[10]) or now, waited = found[11],
    u = false, index = 0, took = false, body = '',
  }
end

local function code_of_settled(t, kind)
  if kind == 'finish' then return 1 end
  if kind == 'discard' then return 5 end
  if kind == 'release' or (kind == 'crash' and t.state ~= 'failed') then return 4 end
  return t.state == 'failed' and 3 or 2
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
      touch_moves(t)
    end
    ended[#ended + 1] = t
  elseif t and t.done == token then
    codes[i] = code_of_settled(t, kind)
  else
    codes[i] = 0
  end
end
if #ended > 0 then touch_minute() end
touch_all()
if given_back then -- to the front of their queues: the oldest last, so that it is the first again
  table.sort(ended, function(a, b) return a.token > b.token end)
end

local function retry_later(t, retries)
  remember(t.id, 'failed', t.worker, t.body, t.report)
  to_scheduled(t.u, t, now + t.delay, 'retries', exact(retries), 'deliveries', 0, 'done', exact(t.token))
  count('retried', 1)
  return 2
end

local handlers = {}

function handlers.fail(t)
  end_lease(t.u, t, t.took, true)
  count('failed', 1)
  tally('failed', 1)
  if t.delay and t.retries < t.max_retries then return retry_later(t, t.retries + 1) end
  to_dead(t.u, t, 'failed', t.body, t.report, 'done', exact(t.token))
  return 3
end

function handlers.later(t)
  end_lease(t.u, t, t.took, true)
  return retry_later(t, t.retries)
end

function handlers.discard(t)
  end_lease(t.u, t, t.took, true)
  remember(t.id, 'discarded', t.worker, t.body, t.report)
  to_ended(t, 'canceled', result_ttl, 'done', exact(t.token))
  count('canceled', 1)
  return 5
end

function handlers.poison(t)
  end_lease(t.u, t, t.took, true)
  to_dead(t.u, t, 'poisoned', t.body, t.report, 'done', exact(t.token))
  return 3
end

function handlers.release(t)
  redis.call('HSET', t.key, 'done', exact(t.token))
  return return_task(t.u, t, 'released', t.body, t.report)
end

function handlers.crash(t)
  t.done = t.token
  redis.call('HSET', t.key, 'done', exact(t.done))
  return return_task(t.u, t, 'crashed', t.body, t.report)
end

local function finish(t)
  end_lease(t.u, t, t.took, true)
  if t.body ~= '' then
    to_ended(t, 'finished', result_ttl, 'done', exact(t.token), 'result', t.body)
  else
    to_ended(t, 'finished', result_ttl, 'done', exact(t.token))
  end
  add(t.u, 'finished', 1)
  count('finished', 1)
  tally('finished', 1)
  return 1
end

for _, t in ipairs(ended) do codes[t.index] = t.kind and handlers[t.kind](t) or finish(t) end
if #ended > 0 then commit() end

start_due_if_needed()
local reply = { exact(now), '', '', '', table.concat(codes) }
local at = A + 1 + size * STRIDE
fetch(reply, tonumber(ARGV[at]), at + 1)
reply[2], reply[3], reply[4] = exact(stat.look), exact(stat.vtime), posted and '1' or '0'
return reply
