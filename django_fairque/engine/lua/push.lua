#!lua
-- Accept tasks, each into the state it belongs to: QUEUED, or SCHEDULED when its time has not come.
--
-- A chosen id is an idempotency key while its task lives; a made-up id that is known already is this very call
-- repeated. With a nonce the first reply is kept, so that a repeated call answers as the first one did.
--
-- KEYS    stats ring wake users throttled state:scheduled state:queued state:finished state:failed state:canceled reply
-- ARGV    options, nonce kept (0/1), n (1..1000), then n × (id, user, name, priority, payload, chosen id (0/1),
--         due us or '', expires us or '', max retries, timeout us or '', sla us or '', unique key or '',
--         unique for us or '', debounce us or '')
-- REPLY   now (us), codes (one digit per task: 1 accepted, 2 duplicate, 3 backlog full), then for each duplicate
--         under another id: its index, the id under which the work is known
-- COST    12 commands for one task, 2 a task in bulk
-- include base user task
local STRIDE = 14
local kept, size = ARGV[A] == '1', tonumber(ARGV[A + 1])

if kept then
  local stored = redis.call('GET', K.reply)
  if stored then return { exact(now), unpack(unpack_list(stored)) } end
end

local items, keys = {}, {}
for i = 1, size do
  local at = A + 2 + (i - 1) * STRIDE
  local item = { index = i, id = ARGV[at], user = ARGV[at + 1], at = at }
  items[i] = item
  keys[2 * i - 1], keys[2 * i] = task_key(item.id), payload_key(item.id)
end
local some_exist = false
for first = 1, #keys, CHUNK do
  some_exist = redis.call('EXISTS', unpack(keys, first, math.min(first + CHUNK - 1, #keys))) > 0 or some_exist
end

local codes, others, accepted, accepted_by_id, seen, uniques = {}, {}, {}, {}, {}, {}

local function is_duplicate(item)
  if seen[item.id] then return true end
  seen[item.id] = true
  if not some_exist then return false end
  local t = read_task(item.id)
  if not t then return false end
  if ARGV[item.at + 5] ~= '1' then
    item.is_repeat = true
    return true
  end
  if t.state == 'finished' or t.state == 'failed' or t.state == 'canceled' then
    item.before = t -- ended: the id is free again, what is kept of the old task goes
    return false
  end
  return true
end

-- The task under which this work is known already, if its window is still open and the task was not canceled.
local function known_as(item)
  local digest = ARGV[item.at + 11]
  if digest == '' then return nil end
  local stored = uniques[digest]
  if not stored then
    local value = redis.call('GET', unique_key(digest))
    stored = value and unpack_list(value)
  end
  local until_moment = stored and tonumber(stored[2])
  if not stored or until_moment <= now then return nil end
  local earlier = accepted_by_id[stored[1]]
  local t = not earlier and read_task(stored[1])
  if not earlier and (not t or t.state == 'canceled') then return nil end
  if ARGV[item.at + 13] ~= '' then -- debounce: the last one counts, if the first has not begun
    if earlier then
      earlier.payload = ARGV[item.at + 4]
    elseif t.state == 'scheduled' then
      item.moves = stored[1]
    else
      return nil
    end
  end
  return stored[1]
end

local pending = {} -- per user, tasks accepted by this very call
for _, item in ipairs(items) do
  local u = load_user(item.user)
  local waiting = u.ready + u.sched + u.deferred + (pending[u] or 0)
  local limit = u.backlog or (max_backlog > 0 and max_backlog)
  if is_duplicate(item) then
    codes[item.index] = item.is_repeat and 1 or 2
  else
    local other = known_as(item)
    if other then
      codes[item.index] = 2
      others[#others + 1] = tostring(item.index)
      others[#others + 1] = other
    elseif limit and waiting >= limit then
      codes[item.index] = 3
    else
      codes[item.index] = 1
      item.u = u
      pending[u] = (pending[u] or 0) + 1
      accepted[#accepted + 1] = item
      accepted_by_id[item.id] = item
      touch(critical_key(item.user))
      touch(normal_key(item.user))
    end
    local digest = ARGV[item.at + 11]
    if digest ~= '' and codes[item.index] ~= 3 then
      touch(unique_key(digest))
      local window = tonumber(ARGV[item.at + 12]) or tonumber(ARGV[item.at + 13]) or 0
      if codes[item.index] == 1 or item.moves then
        uniques[digest] = { other or item.id, exact(now + window), window }
      end
    end
  end
end
touch_all()
touch_minute()

local payloads, wakes = {}, false
for _, item in ipairs(items) do
  local at = item.at
  if item.moves then -- debounce: the last payload counts, and the wait starts again
    local due = now + tonumber(ARGV[at + 13])
    payloads[#payloads + 1], payloads[#payloads + 2] = payload_key(item.moves), ARGV[at + 4]
    redis.call('HSET', task_key(item.moves), 'due', exact(due))
    zadd(K['state:scheduled'], due, item.moves)
  end
end
for _, item in ipairs(accepted) do
  local at, u = item.at, item.u
  local priority = tonumber(ARGV[at + 3])
  set_stat('stamp', math.max(now - EPOCH, stat.stamp + 1)) -- strictly growing: exact FIFO within one bulk push
  local t = {
    id = item.id, priority = priority, ready = EPOCH + stat.stamp, raw = {},
    expires = tonumber(ARGV[at + 7]), sla = tonumber(ARGV[at + 10]),
  }
  if item.before then
    redis.call('DEL', task_key(item.id))
    zrem(K['state:' .. item.before.state], item.id)
  end
  payloads[#payloads + 1], payloads[#payloads + 2] = payload_key(item.id), item.payload or ARGV[at + 4]
  local due = tonumber(ARGV[at + 6])
  if ARGV[at + 13] ~= '' then due = now + tonumber(ARGV[at + 13]) end
  local is_due = not due or due <= now
  local fields = {
    'state', is_due and 'queued' or 'scheduled', 'user', item.user, 'priority', ARGV[at + 3],
    'created', exact(t.ready), 'max_retries', ARGV[at + 8],
  }
  for field, offset in pairs({ name = 2, expires = 7, timeout = 9, sla = 10 }) do
    if ARGV[at + offset] ~= '' then
      fields[#fields + 1] = field
      fields[#fields + 1] = ARGV[at + offset]
    end
  end
  if due then
    fields[#fields + 1] = 'due'
    fields[#fields + 1] = exact(due)
  end
  redis.call('HSET', task_key(item.id), unpack(fields))
  if is_due then
    queue_up(u, t, false)
  else
    zadd(K['state:scheduled'], due, item.id)
    if stat.look == 0 or due < stat.look then wakes = true end -- an idle worker must sleep less long
    look_at(due)
    add(u, 'sched', 1)
  end
end
for first = 1, #payloads, CHUNK do
  redis.call('MSET', unpack(payloads, first, math.min(first + CHUNK - 1, #payloads)))
end
for digest, stored in pairs(uniques) do
  redis.call('SET', unique_key(digest), pack({ stored[1], stored[2] }), 'PX', exact(math.ceil(stored[3] / 1000) + 1000))
end
if #accepted > 0 then
  count('pushed', #accepted)
  tally('pushed', #accepted)
end
commit()
if ring_grew or wakes then redis.call('ZADD', K.wake, 0, 'ready') end
local reply = { table.concat(codes), unpack(others) }
if kept then redis.call('SET', K.reply, pack(reply), 'PX', 120000) end
return { exact(now), unpack(reply) }
