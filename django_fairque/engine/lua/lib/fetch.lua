-- Hand out the next tasks: `take_for` (lib/select_next.lua) decides which, then all of it is written. Used by the commands pop and settle.

local fetch, next_place, append_lease
do

do

local function place_in_ring(served_lists, limit)
  local last = served_lists[#served_lists]
  if limit > 0 and #taken < limit and not (last and last.is_held_back) then return '' end
  return redis.call('ZRANGE', K.ring, 0, 0, 'WITHSCORES')[2] or ''
end

-- What the caller needs to decide which shard is next. If it serves all users: the position of the next one in the ring, '' if
-- there is none. If it serves lists: for each list that was looked at (the steal targets may be all users), separated by blanks,
-- this position (0 for a list of names), a slash, and what was taken for the list. `served_lists` is what `fetch` returned.
function next_place(served_lists, limit, at)
  if not is_spread then return '' end
  if ARGV[at + 5] == '*' then return place_in_ring(served_lists, limit) end
  local texts = {}
  for i, one in ipairs(served_lists) do
    local place = one.is_left == nil and place_in_ring(served_lists, limit) or one.is_left and '0' or ''
    texts[i] = table.concat({ place, '/', exact(one.got) })
  end
  return table.concat(texts, ' ')
end

end

-- How it was handed out, as far as that is another way than the last time.
local NOTHING = {}
local function marks_of(task)
  local marks = NOTHING
  if task.charged_as > 0 or task.raw.charge then marks = { 'charge', exact(task.charged_as) } end
  if task.is_companion or task.raw.companion then
    marks = { 'companion', task.is_companion and '1' or '0', unpack(marks) }
  end
  return marks
end

function append_lease(reply, task, payload, lease_end)
  local raw, n = task.raw, #reply
  reply[n + 1], reply[n + 2], reply[n + 3] = task.id, task.token_text, exact(task.deliveries)
  reply[n + 4], reply[n + 5], reply[n + 6] = lease_end, payload or '', task.user
  reply[n + 7], reply[n + 8], reply[n + 9] = raw.name or '', raw.priority, raw.created or exact(task.created)
  reply[n + 10], reply[n + 11], reply[n + 12] = raw.ready or raw.created or exact(task.ready), raw.retries or '', raw.max_retries or ''
  reply[n + 13], reply[n + 14], reply[n + 15] = raw.timeout or '', raw.due or '', raw.expires or ''
  reply[n + 16], reply[n + 17], reply[n + 18] = exact(deadline_of(task)), raw.run or '', raw.trace or ''
  reply[n + 19] = task.is_quarantined and '2' or raw.suspect or ''
end

local function payloads_of(tasks)
  local keys, values = {}, {}
  for i, task in ipairs(tasks) do keys[i] = payload_key(task.id) end
  for first = 1, #keys, CHUNK do
    local some = redis.call('MGET', unpack(keys, first, math.min(first + CHUNK - 1, #keys)))
    for i = 1, math.min(CHUNK, #keys - first + 1) do values[first + i - 1] = some[i] end
  end
  return values
end

-- Finds out which of these are of a name and user in quarantine (handlers.overdue in settle.lua). One command, if there are any.
local function note_quarantined(tasks)
  if stat.quarantine <= now or #tasks == 0 then return end
  local members = {}
  for i, task in ipairs(tasks) do members[i] = task.user .. '\0' .. (task.raw.name or '') end
  for first = 1, #members, CHUNK do
    local last = math.min(first + CHUNK - 1, #members)
    for i, quarantine_end in ipairs(redis.call('ZMSCORE', P .. 'quarantine', unpack(members, first, last))) do
      tasks[first + i - 1].is_quarantined = quarantine_end and tonumber(quarantine_end) > now
    end
  end
end

-- The same call again (its reply was lost): the leases that it was given the first time and still has.
local function replay(reply, stored, lease_end_text)
  local list, tasks = unpack_list(stored), {}
  for i = 1, #list, 2 do
    local task = read_task(list[i])
    if task and task.state == 'started' and exact(task.token) == list[i + 1] then tasks[#tasks + 1] = task end
  end
  local payloads = payloads_of(tasks)
  note_quarantined(tasks)
  for i, task in ipairs(tasks) do append_lease(reply, task, payloads[i], lease_end_text) end
end

local function bury_expired()
  for _, task in ipairs(expired) do
    zrem(K['state:queued'], task.id)
    expire(task)
  end
  for _, id in ipairs(dropped_ids) do zrem(K['state:queued'], id) end
end

-- Appends the leases of up to `limit` turns to `reply`. ARGV from `at`: worker, lease (us), woken, begin and until (`take_for`), users,
-- steal targets, batch sizes.
-- With `is_look` and a limit of 0 only what `next_place` says. Returns what `take_for` returned, for `next_place`.
function fetch(reply, limit, at, is_look)
  local worker, lease, woken_as = ARGV[at], tonumber(ARGV[at + 1]), ARGV[at + 2]
  local woken, has_waited, is_again = woken_as ~= '0', woken_as == '2' or woken_as == '3', woken_as == '3'
  -- Who has waited since it sent this may have left meanwhile: nobody would run what it was handed.
  if has_waited and not redis.call('ZSCORE', P .. 'workers', worker) then limit = 0 end
  is_look = is_look and is_spread and limit == 0 and ARGV[at + 5] ~= '*'
  local steal = at + 6 + (tonumber(ARGV[at + 5]) or 0)
  local batch_sizes = batch_sizes_of(ARGV[steal + 1 + (tonumber(ARGV[steal]) or 0)] or '')
  local served_lists = {}
  if (limit > 0 or is_look) and stat.paused == 0 then
    served_lists = take_for(limit, at + 5, ARGV[at + 3], ARGV[at + 4], batch_sizes)
  end
  local lease_end = now + lease
  local lease_end_text = exact(lease_end)
  if #taken == 0 and #expired + #dropped_ids == 0 then
    local stored
    if is_again then -- the connection that it first went over may be there yet: it must do nothing when it comes
      stored = redis.call('SET', K.reply, '', 'NX', 'GET', 'PX', reply_ttl(0))
    else
      stored = limit > 0 and redis.call('GET', K.reply)
    end
    if stored then replay(reply, stored, lease_end_text) end
    commit()
    wake_if(woken or ring_grew)
    return served_lists
  end

  local payloads, record = payloads_of(taken), {}
  note_quarantined(taken)
  for _, task in ipairs(expired) do touch(history_key(task.id)) end
  if #expired > 0 then touch_minute() end
  touch_all()
  for i, task in ipairs(taken) do
    task.token = stat.token + i
    task.token_text = exact(task.token)
    record[2 * i - 1], record[2 * i] = task.id, task.token_text
  end
  -- The first write: whether this nonce was served before, and if not, with what.
  local packed = pack(record)
  local stored = redis.call('SET', K.reply, packed, 'NX', 'GET', 'PX', reply_ttl(#packed))
  if stored then
    replay(reply, stored, lease_end_text)
    wake_if(woken) -- the marker may have been for others: over a connection that was given up it is taken for nobody
    return served_lists
  end

  set_stat('token', stat.token + #taken)
  for _, task in ipairs(taken) do
    zadd(K['state:started'], lease_end, task.id)
    sadd(K.leases, task.id)
  end
  flush()
  for i, task in ipairs(taken) do
    task.deliveries = task.deliveries + 1
    zrem(K['state:queued'], task.id)
    redis.call('HSET', task.key, 'state', 'started', 'token', task.token_text, 'worker', worker,
      'started', now_text, 'deliveries', argument(task.deliveries), 'cost', argument(task.cost),
      unpack(marks_of(task)))
    append_lease(reply, task, payloads[i], lease_end_text)
    if deadline_of(task) < now and task.raw.warn ~= 'missed' then -- counted once: a retry can't miss the SLA again
      redis.call('HSET', task.key, 'warn', 'missed')
      count('sla_violated', 1)
      count('sla_violated:' .. task.priority, 1)
      tally('violated', 1)
      alert('violated', task, deadline_of(task))
    end
  end
  if #taken > 0 then
    count('started', #taken)
    look_at(lease_end)
  end
  bury_expired()
  for _, user in ipairs(user_order) do remove_taken(user) end
  commit()
  wake_if(woken or ring_grew)
  return served_lists
end

end
