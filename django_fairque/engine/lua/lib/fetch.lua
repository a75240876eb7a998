-- Hand out the next tasks. `selection.select` (lib/selection.lua) chooses them, then all changes are written. Used by
-- the commands pop and settle.
--
-- include heads numbers calls keys lists options counters clock replies slot statistics writes alerts ring users limits saving task_record deadlines moves windows next_task user_periods limit_turns turns selection sla task_names

local fetch = {}

local CHUNK, NEVER = calls.CHUNK, clock.NEVER
local exact, argument = numbers.exact, numbers.argument -- local aliases, which Lua finds faster: these functions are called often

-- The batch sizes by task name: how many tasks of this name the worker runs together in one call. The text is the same
-- from call to call, so it is parsed only when it has changed.
local batch_sizes, batch_text = {}, ''
local function batch_sizes_of(text)
  if text ~= batch_text then
    local words = lists.unpack(text)
    batch_sizes, batch_text = {}, text
    for i = 1, #words, 2 do batch_sizes[words[i]] = tonumber(words[i + 1]) end
  end
  return batch_sizes
end

-- Return, separated by colons: the position of the next user ('' if there is none), its arrival if it is a newcomer,
-- the tag below which other users are overdue, 1 if users are waiting that are not newcomers, the first letters of the
-- lanes with users that can be served, and the lowest `urgent_tag`.
local function place_in_ring(served_lists, limit)
  local last, place, came, found, urgent_tag, shard = served_lists[#served_lists], '', '', '', '', counters.shard
  local turn = ring.newcomers_turn(shard)
  if limit == 0 or #turns.taken >= limit or last and last.is_held_back or turns.has_closed_lane() then
    place = redis.call('ZRANGE', K.ring, 0, 0, 'WITHSCORES')[2] or ''
    if place ~= '' then found = 'n' end
    if shard['depth:7'] > 0 then urgent_tag = redis.call('ZRANGE', K.urgent, 0, 0, 'WITHSCORES')[2] or '' end
    if urgent_tag ~= '' then found = found .. 'u' end
    if shard['depth:0'] > 0 and redis.call('ZCARD', K.bulk) > 0 then found = found .. 'b' end
    if place == '' and (found ~= '' or ring.has_anyone()) then place = exact(shard.vtime) end -- users are waiting, but only in other lanes
    if place ~= '' and tonumber(place) < 0 then
      local first = turn > shard.vtime and redis.call('ZRANGEBYSCORE', K.ring, 0, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
      if first and tonumber(first) < turn then place = first else place, came = exact(turn), place end
    end
  end
  return table.concat({ place, came, exact(turn), shard.others > 0 and '1' or '', found, urgent_tag }, ':')
end

-- Return the figures from which the caller decides which shard is next. If the worker serves all users, this is the
-- position of the next user in the ring, or '' if there is none. If it serves lists of users, the text has for each
-- examined list, separated by blanks: this position (0 for a list of names), a slash, and the amount taken for the
-- list. The steal targets may be all users. `served_lists` is the result of `fetch.hand_out`.
function fetch.next_place(served_lists, limit, at)
  if not options.is_spread then return '' end
  if ARGV[at + 5] == '*' then return place_in_ring(served_lists, limit) end
  local texts = {}
  for i, one in ipairs(served_lists) do
    local place = one.is_left == nil and place_in_ring(served_lists, limit) or one.is_left and '0' or ''
    texts[i] = table.concat({ place, '/', exact(one.got) })
  end
  return table.concat(texts, ' ')
end

-- Return the fields that describe how the task was handed out. Fields that are empty now and were empty before are left
-- out.
local NOTHING = {}
local function marks_of(task)
  local marks = NOTHING
  if task.is_listed or task.raw.listed then marks = { 'listed', task.is_listed and '1' or '0' } end
  if task.lead + task.organization_lead > 0 or task.raw.lead then
    marks = { 'lead', argument(task.lead), 'organization_lead', argument(task.organization_lead), unpack(marks) }
  end
  if task.is_companion or task.raw.companion then
    marks = { 'companion', task.is_companion and '1' or '0', unpack(marks) }
  end
  return marks
end

-- Return the values that few leases have, packed. Fields and values alternate.
local function rare_values(task)
  local raw, deliveries = task.raw, task.deliveries
  if deliveries == 1 and not (raw.retries or raw.due or raw.suspect or task.is_quarantined) then return '' end
  local suspect = task.is_quarantined and '2' or raw.suspect or ''
  return lists.pack({ 'deliveries', exact(deliveries), 'retries', raw.retries or '', 'due', raw.due or '', 'suspect', suspect })
end

local function append_lease(reply, task, payload)
  local raw, n = task.raw, #reply
  reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] = task.id, task.token_text, payload or '', task.user
  reply[n + 5], reply[n + 6], reply[n + 7] = raw.name or '', raw.priority, raw.created or exact(task.created)
  reply[n + 8], reply[n + 9], reply[n + 10] = raw.ready or '', raw.max_retries or '', raw.timeout or ''
  local deadline = task.deadline or deadlines.to_start(task)
  if deadline >= NEVER or deadline <= -NEVER then deadline = exact(deadline) end -- only a damaged record has such a deadline, which the server does not print as an integer
  reply[n + 11], reply[n + 12], reply[n + 13], reply[n + 14] = deadline, raw.expires or '', raw.run or '', raw.trace or ''
  reply[n + 15] = rare_values(task)
end

local function payloads_of(tasks)
  local unread, places, values = {}, {}, {}
  for i, task in ipairs(tasks) do
    if task.is_whole and task.payload_at then
      values[i] = string.sub(task.text, task.payload_at)
    else
      unread[#unread + 1], places[#places + 1] = keys.payload(task.id), i
    end
  end
  for first = 1, #unread, CHUNK do
    local last = math.min(first + CHUNK - 1, #unread)
    local some = redis.call('MGET', unpack(unread, first, last))
    for i = first, last do values[places[i]] = heads.payload_in(some[i - first + 1]) end
  end
  return values
end

-- Set `is_quarantined` on the tasks whose name and user are in quarantine (handlers.overdue in settle.lua). This takes
-- one command, or none if nothing is in quarantine.
local function note_quarantined(tasks)
  if counters.shard.quarantine <= clock.now or #tasks == 0 then return end
  local members = {}
  for i, task in ipairs(tasks) do members[i] = task.user .. '\0' .. (task.raw.name or '') end
  for first = 1, #members, CHUNK do
    local last = math.min(first + CHUNK - 1, #members)
    for i, quarantine_end in ipairs(redis.call('ZMSCORE', P .. 'quarantine', unpack(members, first, last))) do
      tasks[first + i - 1].is_quarantined = quarantine_end and tonumber(quarantine_end) > clock.now
    end
  end
end

-- Append the end of the leases to `reply`, and then 15 values of each lease.
function fetch.append_leases(reply, tasks, payloads, lease_end)
  if tasks[1] then reply[#reply + 1] = exact(lease_end) end
  for i, task in ipairs(tasks) do append_lease(reply, task, payloads[i]) end
end

-- Answer a repeated call, whose first reply was lost: return the leases that the first call gave and that the worker
-- still has. `stored` contains the token of the first lease, and the ids of the tasks in the order of their tokens.
local function replay(reply, stored, lease_end)
  local list, tasks = lists.unpack(stored), {}
  local before = (tonumber(list[1]) or 0) - 2
  for i = 2, #list do
    local task = task_record.read(list[i])
    if task and task.state == 'started' and task.token == before + i then tasks[#tasks + 1] = task end
  end
  note_quarantined(tasks)
  fetch.append_leases(reply, tasks, payloads_of(tasks), lease_end)
end

local function bury_expired()
  for _, task in ipairs(next_task.expired) do
    writes.zrem(K['state:queued'], task.id)
    if not task.bury then task_names.note_sla(task) end;
    (task.bury or moves.expire)(task)
  end
  for _, id in ipairs(next_task.dropped_ids) do writes.zrem(K['state:queued'], id) end
end

-- Append the leases of up to `limit` turns to `reply`. ARGV contains, from index `at` on: worker, lease (us), woken,
-- begin and until (`selection.select`), users, steal targets, batch sizes, limits of lanes. With `is_look` and a limit
-- of 0, only the figures for `fetch.next_place` are computed. Returns the result of `selection.select`, for
-- `fetch.next_place`, and whether tasks were handed out (a repeated call hands out none).
function fetch.hand_out(reply, limit, at, is_look)
  local worker, lease, woken_as = ARGV[at], tonumber(ARGV[at + 1]), ARGV[at + 2]
  local woken, has_waited, is_again = woken_as ~= '0', woken_as == '2' or woken_as == '3', woken_as == '3'
  -- If the call arrived late, its worker may have died. Such a worker gets no tasks, because nobody would run them.
  if has_waited and not redis.call('ZSCORE', P .. 'workers', worker) then limit = 0 end
  is_look = is_look and options.is_spread and limit == 0 and ARGV[at + 5] ~= '*'
  local steal = at + 6 + (tonumber(ARGV[at + 5]) or 0)
  local last = steal + (tonumber(ARGV[steal]) or 0)
  local batch_sizes, below_urgent = batch_sizes_of(ARGV[last + 1] or ''), tonumber(ARGV[last + 2])
  if below_urgent then
    turns.limit_lanes(below_urgent, tonumber(ARGV[last + 3]))
    ring.note_reserved_slots()
  end
  local served_lists = {}
  if (limit > 0 or is_look) and counters.shard.paused == 0 then
    served_lists = selection.select(limit, at + 5, ARGV[at + 3], ARGV[at + 4], batch_sizes)
    limit_turns.park_skipped()
  end
  local taken, expired, shard = turns.taken, next_task.expired, counters.shard
  local now = clock.now
  local lease_end = now + lease
  if #taken == 0 and #expired + #next_task.dropped_ids == 0 and not limits.has_arrivals() then
    local stored
    if is_again then -- the connection over which this call was first sent may still deliver it later: it must do nothing then
      stored = redis.call('SET', K.reply, '', 'NX', 'GET', 'PX', replies.ttl(0))
    else
      stored = limit > 0 and redis.call('GET', K.reply)
    end
    if stored then replay(reply, stored, lease_end) end
    saving.commit()
    ring.wake_if(woken or ring.has_grown)
    return served_lists
  end

  local payloads, record = payloads_of(taken), { exact(shard.token + 1) }
  note_quarantined(taken)
  for _, task in ipairs(expired) do slot.touch(keys.history(task.id)) end
  for _, task in ipairs(expired) do user_periods.touch(task.owner) end
  if #expired > 0 then
    statistics.touch_minute()
    task_names.touch()
  end
  slot.touch_all()
  for i, task in ipairs(taken) do
    task.token = shard.token + i
    task.token_text = exact(task.token)
    record[i + 1] = task.id
  end
  -- The first write finds out whether a call with this nonce was served before. If so, the stored leases
  -- are returned.
  local packed = lists.pack(record)
  local stored = redis.call('SET', K.reply, packed, 'NX', 'GET', 'PX', replies.ttl(#packed))
  if stored then
    replay(reply, stored, lease_end)
    ring.wake_if(woken) -- wake other workers: the reply that took the marker may have gone to a connection that was closed
    return served_lists
  end

  counters.set('token', shard.token + #taken)
  for _, task in ipairs(taken) do
    writes.zadd(K['state:started'], lease_end, task.id)
    writes.sadd(K.leases, task.id)
  end
  writes.flush()
  for _, task in ipairs(taken) do
    task.deliveries = task.deliveries + 1
    writes.zrem(K['state:queued'], task.id)
    redis.call('HSET', task.key, 'state', 'started', 'token', task.token_text, 'worker', worker,
      'started', clock.now_text, 'deliveries', argument(task.deliveries), 'cost', argument(task.cost),
      unpack(marks_of(task)))
    task.deadline = deadlines.to_start(task)
    if task.deadline < now and task.raw.warn ~= 'missed' then -- a missed SLA is counted only once per task, not again at a retry
      task.raw.cause = task.raw.cause or sla.cause(task)
      redis.call('HSET', task.key, 'warn', 'missed', 'cause', task.raw.cause)
      counters.count('sla_violated', 1)
      counters.count('sla_violated:' .. task.priority, 1)
      statistics.tally('violated', 1)
      alerts.add('violated', task, task.deadline)
    end
  end
  fetch.append_leases(reply, taken, payloads, lease_end)
  if #taken > 0 then
    counters.count('started', #taken)
    counters.note_due(lease_end)
  end
  bury_expired()
  for _, user in ipairs(users.order) do windows.remove_taken(user) end
  saving.commit()
  ring.wake_if(woken or ring.has_grown)
  return served_lists, true
end
