-- Take the next tasks, fairly: the lowest position in the ring, then that user's most urgent task.
-- Everything is read and decided first, in memory; then all of it is written.

local WEIGHTS = { 0.2, 0.4, 0.6, 0.8, 1.0 }

-- A binary heap of users by position.
local heap_position, heap_user, heap_size
each_call(function() heap_position, heap_user, heap_size = {}, {}, 0 end)
local function heap_push(position, user)
  heap_size = heap_size + 1
  local i = heap_size
  while i > 1 do
    local parent = math.floor(i / 2)
    if heap_position[parent] <= position then break end
    heap_position[i], heap_user[i] = heap_position[parent], heap_user[parent]
    i = parent
  end
  heap_position[i], heap_user[i] = position, user
end
local function heap_pop()
  local user, position, last_user = heap_user[1], heap_position[heap_size], heap_user[heap_size]
  heap_size = heap_size - 1
  local i = 1
  while true do
    local child = 2 * i
    if child > heap_size then break end
    if child < heap_size and heap_position[child + 1] < heap_position[child] then child = child + 1 end
    if position <= heap_position[child] then break end
    heap_position[i], heap_user[i] = heap_position[child], heap_user[child]
    i = child
  end
  heap_position[i], heap_user[i] = position, last_user
  return user
end

-- The task of priority `p` that has waited longest and is not taken yet: id and ready time.
local function peek(u, p)
  local lane = u.lanes[p]
  if not lane then
    lane = { at = 1, ids = {}, ready = {}, step = 1 }
    u.lanes[p] = lane
  end
  if lane.at > #lane.ids then
    local first = #lane.ids
    if p == 6 then
      for _, id in ipairs(redis.call('LRANGE', critical_key(u.name), first, first + lane.step - 1)) do
        lane.ids[#lane.ids + 1] = id
      end
    else
      local found = redis.call('ZRANGEBYSCORE', normal_key(u.name), exact(p * BAND), '(' .. exact((p + 1) * BAND),
        'WITHSCORES', 'LIMIT', first, lane.step)
      for i = 1, #found, 2 do
        lane.ids[#lane.ids + 1] = found[i]
        lane.ready[#lane.ids] = tonumber(found[i + 1]) - p * BAND + EPOCH
      end
    end
    lane.step = math.min(lane.step * 4, 256)
  end
  return lane.ids[lane.at], lane.ready[lane.at]
end

-- Critical first; else the highest earned score, weight × (waited + head start) (Kleinrock 1964 with an offset).
-- A lane is looked at only if its oldest task could win: none has waited longer than `since` says.
local function most_urgent(u)
  if u[READY[6]] > 0 then return 6 end
  local best, best_earned
  for p = 5, 1, -1 do
    if u[READY[p]] > 0 then
      local bound = WEIGHTS[p] * (math.max(0, now - (u.since or 0)) + head_start)
      if not best or bound > best_earned then
        local id, ready = peek(u, p)
        local earned = id and WEIGHTS[p] * (math.max(0, now - ready) + head_start) or -1
        if not best or earned > best_earned then best, best_earned = p, earned end
      end
    end
  end
  return best
end

local function remove_taken(u)
  for p, lane in pairs(u.lanes) do
    local taken = lane.at - 1
    if p == 6 and taken > 0 then
      redis.call('LPOP', critical_key(u.name), taken)
    else
      for i = 1, taken do zrem(normal_key(u.name), lane.ids[i]) end
    end
  end
  u.lanes = {}
end

local taken, expired, dropped_ids
each_call(function() taken, expired, dropped_ids = {}, {}, {} end)

-- One task of this user, or nil when it has none after all (then its counters are set right).
local function take_one(u)
  while true do
    local p = most_urgent(u)
    if not p then return nil end
    local id = peek(u, p)
    if not id then
      add_ready(u, p, -u[READY[p]])
    else
      local lane = u.lanes[p]
      lane.at = lane.at + 1
      add_ready(u, p, -1)
      local t = read_task(id)
      if not (t and t.state == 'queued' and t.user == u.name) then
        dropped_ids[#dropped_ids + 1] = id -- an entry without its task: mended by dropping it
      elseif t.expires and t.expires <= now then
        t.u = u
        expired[#expired + 1] = t
      else
        t.u = u
        return t
      end
      if #expired + #dropped_ids >= sweep_limit then return nil end
    end
  end
end

local function take(limit)
  while #taken < limit and heap_size > 0 and #expired + #dropped_ids < sweep_limit do
    local u = heap_pop()
    local t = take_one(u)
    if t then
      t.cost = charge(u)
      note_wait(u, math.max(0, now - t.ready))
      taken[#taken + 1] = t
    else
      set(u, 'tag', u.tag) -- to be saved
    end
    if can_be_served(u) then heap_push(ring_position(u), u) end
  end
end

local function take_from_ring(limit)
  local first = 0
  while #taken < limit and #expired + #dropped_ids < sweep_limit do
    local found = redis.call('ZRANGE', K.ring, first, first + limit - 1, 'WITHSCORES')
    for i = 1, #found, 2 do
      local u = load_user(found[i])
      if can_be_served(u) then heap_push(tonumber(found[i + 1]), u) else zrem(K.ring, found[i]) end
    end
    take(limit)
    first = first + limit
    if #found < 2 * limit then return end
  end
end

local function take_from_list(limit, at, size)
  for first = at, at + size - 1, CHUNK do
    local last = math.min(first + CHUNK - 1, at + size - 1)
    local positions = redis.call('ZMSCORE', K.ring, unpack(ARGV, first, last))
    for i, position in ipairs(positions) do
      if position then
        local u = load_user(ARGV[first + i - 1])
        if can_be_served(u) then heap_push(tonumber(position), u) end
      end
    end
  end
  take(limit)
end

-- A list of users in ARGV: its length (or '*') and then its members. Returns where the next argument is.
local function take_from(limit, at)
  if ARGV[at] == '*' then
    if #taken < limit then take_from_ring(limit) end
    return at + 1
  end
  local size = tonumber(ARGV[at])
  if #taken < limit and size > 0 then take_from_list(limit, at + 1, size) end
  heap_size = 0
  return at + 1 + size
end

local function append_lease(reply, t, payload, lease_end)
  local raw, n = t.raw, #reply
  reply[n + 1], reply[n + 2], reply[n + 3] = t.id, t.token_text or raw.token, exact(t.deliveries)
  reply[n + 4], reply[n + 5], reply[n + 6] = lease_end, payload or '', t.user
  reply[n + 7], reply[n + 8], reply[n + 9] = raw.name or '', raw.priority, raw.created or exact(t.created)
  reply[n + 10], reply[n + 11], reply[n + 12] = raw.ready or raw.created or exact(t.ready), raw.retries or '', raw.max_retries or ''
  reply[n + 13], reply[n + 14], reply[n + 15] = raw.timeout or '', raw.due or '', raw.expires or ''
  reply[n + 16], reply[n + 17], reply[n + 18] = exact(deadline_of(t)), raw.run or '', raw.trace or ''
end

local function payloads_of(tasks)
  local keys, values = {}, {}
  for i, t in ipairs(tasks) do keys[i] = payload_key(t.id) end
  for first = 1, #keys, CHUNK do
    local some = redis.call('MGET', unpack(keys, first, math.min(first + CHUNK - 1, #keys)))
    for i = 1, math.min(CHUNK, #keys - first + 1) do values[first + i - 1] = some[i] end
  end
  return values
end

-- The same call again (its reply was lost): the leases that it was given the first time and still has.
local function replay(reply, stored, lease_end_text)
  local list, tasks = unpack_list(stored), {}
  for i = 1, #list, 2 do
    local t = read_task(list[i])
    if t and t.state == 'started' and exact(t.token) == list[i + 1] then tasks[#tasks + 1] = t end
  end
  local payloads = payloads_of(tasks)
  for i, t in ipairs(tasks) do append_lease(reply, t, payloads[i], lease_end_text) end
end

local function bury_expired()
  for _, t in ipairs(expired) do
    zrem(K['state:queued'], t.id)
    to_dead(t.u, t, 'expired', 'not started in time', '')
  end
  for _, id in ipairs(dropped_ids) do zrem(K['state:queued'], id) end
end

-- Appends up to `limit` leases to `reply`. ARGV from `at`: worker, lease (us), woken, users, steal targets.
local function fetch(reply, limit, at)
  local worker, lease, woken = ARGV[at], tonumber(ARGV[at + 1]), ARGV[at + 2] == '1'
  if limit > 0 and stat.paused == 0 then take_from(limit, take_from(limit, at + 3)) end
  local lease_end = now + lease
  local lease_end_text = exact(lease_end)
  if #taken == 0 and #expired + #dropped_ids == 0 then
    local stored = limit > 0 and redis.call('GET', K.reply)
    if stored then replay(reply, stored, lease_end_text) end
    commit()
    wake_if(woken or ring_grew)
    return
  end

  local payloads, record = payloads_of(taken), {}
  for _, t in ipairs(expired) do touch(history_key(t.id)) end
  if #expired > 0 then touch_minute() end
  touch_all()
  for i, t in ipairs(taken) do
    t.token = stat.token + i
    t.token_text = exact(t.token)
    record[2 * i - 1], record[2 * i] = t.id, t.token_text
  end
  -- The first write: whether this nonce was served before, and if not, with what.
  local stored = redis.call('SET', K.reply, pack(record), 'NX', 'GET', 'PX', 120000)
  if stored then return replay(reply, stored, lease_end_text) end

  set_stat('token', stat.token + #taken)
  for _, t in ipairs(taken) do
    zadd(K['state:started'], lease_end, t.id)
    sadd(K.leases, t.id)
  end
  flush()
  for i, t in ipairs(taken) do
    t.deliveries = t.deliveries + 1
    zrem(K['state:queued'], t.id)
    redis.call('HSET', task_key(t.id), 'state', 'started', 'token', t.token_text, 'worker', worker,
      'started', now_text, 'deliveries', exact(t.deliveries), 'cost', exact(t.cost))
    append_lease(reply, t, payloads[i], lease_end_text)
    if deadline_of(t) < now then
      count('sla_violated', 1)
      tally('violated', 1)
      alert('violated', t, deadline_of(t))
    end
  end
  if #taken > 0 then
    count('started', #taken)
    look_at(lease_end)
  end
  bury_expired()
  for _, u in ipairs(user_order) do remove_taken(u) end
  commit()
  wake_if(woken or ring_grew)
end
