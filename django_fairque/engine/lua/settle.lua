#!lua flags=allow-oom
-- Report what became of leased tasks and fetch the next ones, in one call.
--
-- An outcome counts only with the task's current token. One that was reported before (the reply was lost) is
-- recognised by its token and answered as the first time; any other old token is stale and changes nothing.
--
-- KEYS    base reply leases
-- ARGV    options, n, then n × (id, token, kind, took us or '', delay us or '', body, trace),
--         limit (0..1000), worker, lease (us), woken (0/1), users, steal (as pop)
--         kind: finish fail later discard release crash poison
-- REPLY   now, look, virtual time and news as pop.lua, codes (one digit per outcome: 0 stale, 1 finished, 2 retried, 3 dead, 4 released,
--         5 canceled), then 18 values per lease
-- COST    3 commands per outcome and 3 per user, and those of a pop
-- include base ring group user lately task deps maintain take fetch
local STRIDE = 7
local size = tonumber(ARGV[A])
local outcomes, codes, seen = {}, {}, {}

local function code_of_settled(t, kind)
  if kind == 'finish' then return 1 end
  if kind == 'discard' then return 5 end
  if kind == 'release' or (kind == 'crash' and t.state ~= 'failed') then return 4 end
  return t.state == 'failed' and 3 or 2
end

for i = 1, size do
  local at = A + 1 + (i - 1) * STRIDE
  local o = {
    id = ARGV[at], token = tonumber(ARGV[at + 1]), kind = ARGV[at + 2], took = tonumber(ARGV[at + 3]),
    delay = tonumber(ARGV[at + 4]), body = ARGV[at + 5], trace = ARGV[at + 6], index = i,
  }
  local t = not seen[o.id] and read_task(o.id)
  seen[o.id] = true
  if t and t.state == 'started' and t.token == o.token then
    o.t, t.u = t, load_user(t.user)
    if o.kind == 'finish' then touch_lease(t) else touch_moves(t) end
    outcomes[#outcomes + 1] = o
  elseif t and t.done == o.token then
    codes[i] = code_of_settled(t, o.kind)
  else
    codes[i] = 0
  end
end
if #outcomes > 0 then touch_minute() end
touch_all()
-- Tasks that are given back go to the front of their queues: the oldest last, so that it is the first again.
table.sort(outcomes, function(a, b)
  if a.token ~= b.token then return a.token > b.token end
  return a.index < b.index
end)

local function retry_later(o, t, retries)
  remember(t.id, 'failed', t.raw.worker, o.body, o.trace)
  to_scheduled(t.u, t, now + o.delay, 'retries', exact(retries), 'deliveries', 0, 'done', exact(o.token))
  count('retried', 1)
  return 2
end

local handlers = {}

function handlers.finish(o, t)
  end_lease(t.u, t, o.took, true)
  if o.body ~= '' then
    to_ended(t, 'finished', result_ttl, 'done', t.raw.token, 'result', o.body)
  else
    to_ended(t, 'finished', result_ttl, 'done', t.raw.token)
  end
  add(t.u, 'finished', 1)
  count('finished', 1)
  tally('finished', 1)
  return 1
end

function handlers.fail(o, t)
  end_lease(t.u, t, o.took, true)
  count('failed', 1)
  tally('failed', 1)
  if o.delay and t.retries < t.max_retries then return retry_later(o, t, t.retries + 1) end
  to_dead(t.u, t, 'failed', o.body, o.trace, 'done', exact(o.token))
  return 3
end

function handlers.later(o, t)
  end_lease(t.u, t, o.took, true)
  return retry_later(o, t, t.retries)
end

function handlers.discard(o, t)
  end_lease(t.u, t, o.took, true)
  remember(t.id, 'discarded', t.raw.worker, o.body, o.trace)
  to_ended(t, 'canceled', result_ttl, 'done', exact(o.token))
  count('canceled', 1)
  return 5
end

function handlers.poison(o, t)
  end_lease(t.u, t, o.took, true)
  to_dead(t.u, t, 'poisoned', o.body, o.trace, 'done', exact(o.token))
  return 3
end

function handlers.release(o, t)
  redis.call('HSET', task_key(t.id), 'done', exact(o.token))
  return return_task(t.u, t, 'released', o.body, o.trace)
end

function handlers.crash(o, t)
  t.done = o.token
  redis.call('HSET', task_key(t.id), 'done', exact(t.done))
  return return_task(t.u, t, 'crashed', o.body, o.trace)
end

for _, o in ipairs(outcomes) do codes[o.index] = handlers[o.kind](o, o.t) end
if #outcomes > 0 then commit() end

start_due_if_needed()
local reply = { exact(now), '', '', '', table.concat(codes) }
local at = A + 1 + size * STRIDE
fetch(reply, tonumber(ARGV[at]), at + 1)
reply[2], reply[3], reply[4] = exact(stat.look), exact(stat.vtime), posted and '1' or '0'
return reply
