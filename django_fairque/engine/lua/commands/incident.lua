#!lua flags=allow-oom
-- Count the events of incidents, close incidents that are over, and forget lost workers. An event opens an incident if
-- no incident of its name is open.
--
-- Each change is returned to only one caller, so each message is sent once. Any caller can make the next change, so a
-- caller that stopped delays nothing. An incident is closed only if no event was counted since the caller read the
-- incident.
--
-- KEYS    base reply incidents incidents:open
-- ARGV    options, n, then n × (act (event, close, forget), name or worker, id of a new incident; of close the moment of the last event (us), alerts,
--         text, m, k, then m × (user, alerts) and k tasks)
-- REPLY   for each: opened, summary, closed or nothing, and the id of the incident
-- COST    8 commands, and for each incident 9, 3 a user, 2 a task, and 2 for each one that is forgotten
-- include numbers lists counters clock slot statistics
local KEPT, MOST, SUMMARY = 30 * 86400e6, 1000, 600e6
local MOST_USERS, MOST_TASKS = 20, 100
local stored = redis.call('GET', K.reply)
if stored then return lists.unpack(stored) end

local function keep(id, key)
  redis.call('ZADD', K.incidents, clock.now_text, id)
  redis.call('PEXPIRE', key, numbers.exact(KEPT / 1000))
end

local acts = {}

function acts.close(change)
  if not change.open then redis.call('HDEL', K['incidents:open'], change.name) end -- the record of the incident has expired
  if not change.open or redis.call('HGET', change.key, 'last') ~= change.given then return '' end
  redis.call('HSET', change.key, 'closed', clock.now_text)
  redis.call('HDEL', K['incidents:open'], change.name)
  keep(change.id, change.key)
  return 'closed'
end

function acts.event(change)
  local key, happened = change.key, ''
  if not change.open then
    happened = 'opened'
    redis.call('HSET', key, 'name', change.name, 'opened', clock.now_text, 'first', change.text)
    redis.call('HSET', K['incidents:open'], change.name, change.id)
  elseif clock.now - tonumber(redis.call('HGET', key, 'reported') or 0) >= SUMMARY then
    happened = 'summary'
    redis.call('HINCRBY', key, 'summaries', 1)
  end
  if happened ~= '' then redis.call('HSET', key, 'reported', clock.now_text) end
  for i = 1, #change.users, 2 do -- count the alerts of up to 20 users separately, and the alerts of all other users together
    local field = 'user:' .. change.users[i]
    if redis.call('HEXISTS', key, field) == 0 and redis.call('HINCRBY', key, 'users', 1) > MOST_USERS then field = 'other_users' end
    redis.call('HINCRBY', key, field, change.users[i + 1])
  end
  for _, id in ipairs(change.tasks) do -- keep a random sample of the tasks
    local count = redis.call('HINCRBY', key, 'tasks', 1)
    local index = count <= MOST_TASKS and count or math.random(count)
    if index <= MOST_TASKS then redis.call('HSET', key, 'task:' .. index, id) end
  end
  redis.call('HSET', key, 'last', clock.now_text, 'text', change.text)
  redis.call('HINCRBY', key, 'alerts', change.alerts)
  keep(change.id, key)
  return happened
end

-- Forget a lost worker, because a worker of this name runs again or somebody has acknowledged the loss. The worker's
-- leases expire later.
function acts.forget(change)
  redis.call('ZREM', P .. 'workers:lost', change.name)
  if tonumber(redis.call('ZSCORE', P .. 'workers', change.name) or 0) > clock.now then return '' end -- the worker sends heartbeats again
  redis.call('ZREM', P .. 'workers', change.name)
  redis.call('DEL', P .. 'worker:' .. change.name)
  return ''
end

local at = FIRST_ARG + 1
local function take(count)
  at = at + count
  return { unpack(ARGV, at - count, at - 1) }
end
for _, name in ipairs({ 'workers', 'workers:lost' }) do slot.touch(P .. name) end
local changes = {}
for i = 1, tonumber(ARGV[FIRST_ARG]) do
  local act, name, given, alerts, text, users, tasks = unpack(take(7))
  local id = redis.call('HGET', K['incidents:open'], name)
  local is_open = id and redis.call('HEXISTS', P .. 'incident:' .. id, 'opened') == 1
  changes[i] = { act = act, name = name, given = given, alerts = tonumber(alerts), text = text, users = take(2 * users), tasks = take(tonumber(tasks)), open = is_open, id = is_open and id or given }
  changes[i].key = P .. 'incident:' .. changes[i].id
  slot.touch(changes[i].key)
  slot.touch(P .. 'worker:' .. name)
end
local ended = redis.call('ZRANGEBYSCORE', K.incidents, '-inf', numbers.exact(clock.now - KEPT), 'LIMIT', 0, MOST)
for _, id in ipairs(redis.call('ZRANGE', K.incidents, 0, #changes - MOST - 1)) do ended[#ended + 1] = id end
for _, id in ipairs(ended) do slot.touch(P .. 'incident:' .. id) end
slot.touch_all()
local reply = {}
for _, change in ipairs(changes) do
  reply[#reply + 1] = acts[change.act](change)
  reply[#reply + 1] = change.id
end
for _, id in ipairs(ended) do
  redis.call('ZREM', K.incidents, id)
  redis.call('DEL', P .. 'incident:' .. id)
end
-- Sweeps return this counter: 1 if an incident is open or a worker was lost.
counters.set('incidents', math.min(1, redis.call('HLEN', K['incidents:open']) + redis.call('EXISTS', P .. 'workers:lost')))
statistics.flush()
redis.call('SET', K.reply, lists.pack(reply), 'PX', 120000)
return reply
