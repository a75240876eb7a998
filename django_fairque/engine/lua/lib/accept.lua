-- Accept tasks, each into the state it belongs to. Everything is read and decided first; then all of it is written.

local STRIDE = 14
local POLICY_WAIT, POLICY_RUN = 'wait', 'run'

local items, codes, others, accepted, moved
local accepted_by_id, alias, seen, uniques, pending, delivered, remotes, is_posted
each_call(function()
  items, codes, others, accepted, moved = {}, {}, {}, {}, {}
  accepted_by_id, alias, seen, uniques, pending, delivered = {}, {}, {}, {}, {}, {}
  remotes, is_posted = {}, false
end)

local function is_ended(state) return state == 'finished' or state == 'failed' or state == 'canceled' end

local function is_duplicate(item, some_exist)
  if seen[item.id] then return true end
  seen[item.id] = true
  if delivered[item.id] then -- by an earlier call of deliver.lua
    item.is_repeat = true
    return true
  end
  if not some_exist then return false end
  local t = read_task(item.id)
  if not t then return false end
  if ARGV[item.at + 5] ~= '1' then
    item.is_repeat = true
    return true
  end
  if not is_ended(t.state) then return true end
  -- Ended: the id is free again and what is kept of the old task goes; but not while its dependents are being told.
  if t.raw.waited and redis.call('ZSCORE', K.resolving, t.id) then return true end
  item.before = t
  return false
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
      earlier.payload, earlier.last = ARGV[item.at + 4], item
    elseif t.state == 'scheduled' then
      item.moves = stored[1]
    else
      return nil
    end
  end
  return stored[1]
end

-- The list or set that a user's task may go to: once a call, however many of the user's tasks go there.
local function touch_lane(u, is_critical)
  local lane = is_critical and 'touched_critical' or 'touched_normal'
  if u[lane] then return end
  u[lane] = true
  touch(is_critical and critical_key(u.name) or normal_key(u.name))
end

local function decide(item, some_exist)
  local u = load_user(item.user)
  local waiting = u.ready + u.sched + u.deferred + (pending[u] or 0)
  local limit = u.backlog or (max_backlog > 0 and max_backlog)
  if is_duplicate(item, some_exist) then return item.is_repeat and 1 or 2 end
  local other, code = known_as(item), 1
  if other then
    code = 2
    alias[item.id] = other
    others[#others + 1] = tostring(item.index)
    others[#others + 1] = other
    if item.moves then moved[#moved + 1] = item end
  elseif limit and waiting >= limit and not is_posted then
    return 3
  else
    item.u = u
    pending[u] = (pending[u] or 0) + 1
    accepted[#accepted + 1] = item
    accepted_by_id[item.id] = item
    touch_lane(u, ARGV[item.at + 3] == '6')
  end
  local digest = ARGV[item.at + 11]
  if digest ~= '' then
    touch(unique_key(digest))
    local window = tonumber(ARGV[item.at + 12]) or tonumber(ARGV[item.at + 13]) or 0
    if code == 1 or item.moves then uniques[digest] = { other or item.id, exact(now + window), window } end
  end
  return code
end

local function read_items(at, size)
  local keys = {}
  for i = 1, size do
    local first = at + (i - 1) * STRIDE
    local item = { index = i, id = ARGV[first], user = ARGV[first + 1], at = first, u = false, created = 0 }
    items[i] = item
    keys[2 * i - 1], keys[2 * i] = task_key(item.id), payload_key(item.id)
  end
  local some_exist = false
  for first = 1, #keys, CHUNK do
    some_exist = redis.call('EXISTS', unpack(keys, first, math.min(first + CHUNK - 1, #keys))) > 0 or some_exist
  end
  for _, item in ipairs(items) do codes[item.index] = decide(item, some_exist) end
end

-- What blocks an accepted task, by what each of its dependencies is now. Returns a refusal or nil, and where the next
-- argument is.
local function read_dependencies(at)
  for _ = 1, tonumber(ARGV[at]) do
    remotes[ARGV[at + 1]] = { shard = ARGV[at + 2] }
    at = at + 2
  end
  at = at + 1
  local states = {}
  local function state_of(id)
    if states[id] == nil and remotes[id] then
      local mirror = read_mirror(id)
      remotes[id].is_known = mirror and true
      states[id] = mirror and mirror.state or 'open'
    elseif states[id] == nil then
      states[id] = redis.call('HGET', task_key(id), 'state') or is_posted and 'finished' -- known when it was posted
    end
    return states[id]
  end
  local lists = tonumber(ARGV[at])
  at = at + 1
  for _ = 1, lists do
    local item, policy, size = items[tonumber(ARGV[at])], ARGV[at + 1], tonumber(ARGV[at + 2])
    if codes[item.index] == 1 and item.u then
      item.policy, item.blockers, item.parents = policy, {}, {}
      local known = {}
      for i = 1, size do
        local id = alias[ARGV[at + 2 + i]] or ARGV[at + 2 + i]
        if not known[id] then
          known[id] = true
          item.parents[#item.parents + 1] = id
          local new = accepted_by_id[id]
          local state = not new and state_of(id)
          if not new and not state then return { 'missing', tostring(item.index), id } end
          if new or not is_ended(state) or (state == 'failed' and policy == POLICY_WAIT) then
            item.blockers[#item.blockers + 1] = id
            if new then new.waited = true end
          elseif policy ~= POLICY_RUN and state ~= 'finished' then
            item.dropped = 'dependency ' .. id .. (state == 'failed' and ' has failed' or ' was canceled')
          end
        end
      end
    end
    at = at + 3 + size
  end
  return nil, at
end

-- The traces of those tasks that belong to one.
local function read_traces(at)
  for i = 1, tonumber(ARGV[at] or '0') do
    items[tonumber(ARGV[at + 2 * i - 1])].trace = ARGV[at + 2 * i]
  end
  return at + 1 + 2 * tonumber(ARGV[at] or '0')
end

-- Only through an id that lives again (it had ended, and tasks wait for it) can a cycle close outside this call.
local function find_cycle(limit)
  local function blockers_of(id)
    local item = accepted_by_id[id]
    if item then return item.blockers or {} end
    return redis.call('SMEMBERS', blocked_key(id))
  end
  for _, item in ipairs(accepted) do
    if item.blockers and item.before and redis.call('EXISTS', waiting_key(item.id)) == 1 then
      local came_from, stack, looked = {}, { item.id }, 0
      while #stack > 0 do
        local id = table.remove(stack)
        for _, blocker in ipairs(blockers_of(id)) do
          if blocker == item.id then
            local path = { item.id }
            while id ~= item.id do
              table.insert(path, 2, id)
              id = came_from[id]
            end
            path[#path + 1] = item.id
            return { 'cycle', unpack(path) }
          end
          if not came_from[blocker] then
            came_from[blocker] = id
            stack[#stack + 1] = blocker
          end
          looked = looked + 1
          if looked > limit then return { 'size', item.id } end
        end
      end
    end
  end
  return nil
end

local function touch_dependencies(run)
  if run ~= '' then touch(run_key(run)) end
  for _, item in ipairs(accepted) do
    if item.before and item.before.raw.waited and redis.call('EXISTS', waiting_key(item.id), watchers_key(item.id)) > 0 then
      item.waited = true
    end
    if item.before and item.before.raw.run then touch(run_key(item.before.raw.run)) end
    if item.dropped then touch(history_key(item.id)) end
    if item.blockers and not item.dropped and #item.blockers > 0 then
      item.is_blocked = true
      touch(blocked_key(item.id))
      for _, id in ipairs(item.blockers) do
        touch(waiting_key(id))
        touch(reacting_key(id))
        if remotes[id] then touch(remote_key(id)) end
      end
    end
  end
end

local OPTIONAL = { 'name', 2, 'expires', 7, 'timeout', 9, 'sla', 10 }
local function fields_of(item, run, state, due)
  local at = item.at
  local fields = {
    'state', state, 'user', item.user, 'priority', ARGV[at + 3], 'created', exact(item.created), 'max_retries', ARGV[at + 8],
  }
  local n = #fields
  local function put(field, value)
    fields[n + 1], fields[n + 2] = field, value
    n = n + 2
  end
  for i = 1, #OPTIONAL, 2 do
    local value = ARGV[at + OPTIONAL[i + 1]]
    if value ~= '' then put(OPTIONAL[i], value) end
  end
  if due then put('due', exact(due)) end
  if run ~= '' then put('run', run) end
  if item.parents and #item.parents > 0 then put('parents', pack(item.parents)) end
  if item.is_blocked and item.policy ~= POLICY_WAIT then put('policy', item.policy) end
  if item.waited then put('waited', '1') end
  if item.before and item.before.raw.watched then put('watched', '1') end
  local trace = (item.last or item).trace
  if trace then put('trace', trace) end
  return fields
end

local function write_edges(item)
  for _, id in ipairs(item.blockers) do
    sadd(blocked_key(item.id), id)
    sadd(waiting_key(id), item.id)
    if item.policy ~= POLICY_WAIT then sadd(reacting_key(id), item.id) end
    local remote = remotes[id]
    if remote and not remote.is_known then
      remote.is_known = true
      redis.call('HSET', remote_key(id), 'state', 'open', 'shard', remote.shard)
      watch({ id = id, shard = remote.shard })
    elseif not remote and not accepted_by_id[id] then
      redis.call('HSET', task_key(id), 'waited', '1')
    end
  end
  count('edges', #item.blockers)
end

-- Payloads and edges are written before the records: whoever repeats a push that ended between them is told that the task
-- is there, and what is there must be all of it. What has no record is nobody's, and the checker removes it.
local function write_payloads()
  local payloads = {}
  for _, item in ipairs(moved) do
    payloads[#payloads + 1], payloads[#payloads + 2] = payload_key(item.moves), ARGV[item.at + 4]
  end
  for _, item in ipairs(accepted) do
    payloads[#payloads + 1], payloads[#payloads + 2] = payload_key(item.id), item.payload or ARGV[item.at + 4]
  end
  for first = 1, #payloads, CHUNK do
    redis.call('MSET', unpack(payloads, first, math.min(first + CHUNK - 1, #payloads)))
  end
end

-- The new record in place of an ended one, if there is one. What would hold for the new task too goes first (an old expiry
-- would end it), the facts of the old one's end last: without them a dead letter could be neither requeued nor discarded.
local OF_AN_END = { failure = 1, reason = 1, ended = 1, died = 1, result = 1, done = 1, worker = 1, token = 1, started = 1 }
local function write_record(item, fields)
  local first, last = {}, {}
  if item.before then
    for i = 1, #fields, 2 do item.before.raw[fields[i]] = nil end
    for field in pairs(item.before.raw) do
      local list = OF_AN_END[field] and last or first
      list[#list + 1] = field
    end
  end
  if #first > 0 then redis.call('HDEL', task_key(item.id), unpack(first)) end
  redis.call('HSET', task_key(item.id), unpack(fields))
  if #last > 0 then redis.call('HDEL', task_key(item.id), unpack(last)) end
end

-- Writes one accepted task; returns whether an idle worker must hear of it although nobody joined the ring.
local function write_item(item, run)
  local at, u = item.at, item.u
  set_stat('stamp', math.max(now - EPOCH, stat.stamp + 1)) -- strictly growing: exact FIFO within one bulk push
  item.created = EPOCH + stat.stamp
  local t = {
    id = item.id, priority = tonumber(ARGV[at + 3]), ready = item.created, raw = {},
    expires = tonumber(ARGV[at + 7]), sla = tonumber(ARGV[at + 10]), died = 0,
  }
  if item.before then
    if item.before.state == 'failed' then count('lying:' .. (item.before.raw.failure or 'failed'), -1) end
    -- One that is canceled again stays where it is: removals are written after additions.
    if not (item.dropped and item.before.state == 'canceled') then zrem(K['state:' .. item.before.state], item.id) end
  end
  local left = item.before and item.before.raw.run
  if left and left ~= run then srem(run_key(left), item.id) end
  if run ~= '' then sadd(run_key(run), item.id) end
  local due = tonumber(ARGV[at + 6])
  if ARGV[at + 13] ~= '' then due = now + tonumber(ARGV[at + 13]) end
  if item.dropped then
    write_record(item, fields_of(item, run, 'canceled', due))
    remember(item.id, 'canceled', '', item.dropped, '')
    t.raw.waited = item.waited
    to_ended(t, 'canceled', result_ttl)
    count('canceled', 1)
    return item.waited
  elseif item.is_blocked then
    write_record(item, fields_of(item, run, 'deferred', due))
    zadd(K['state:deferred'], t.expires or NEVER, item.id)
    if t.expires then look_at(t.expires) end
    add(u, 'deferred', 1)
    return false
  elseif due and due > now then
    write_record(item, fields_of(item, run, 'scheduled', due))
    zadd(K['state:scheduled'], due, item.id)
    local is_first = stat.look == 0 or due < stat.look -- an idle worker must sleep less long
    look_at(due)
    add(u, 'sched', 1)
    return is_first
  end
  write_record(item, fields_of(item, run, 'queued', due))
  queue_up(u, t, false)
  return false
end

-- Parts of a graph for other shards: posted in the same call, so that the graph is accepted as a whole.
local function post_parts(at)
  for i = 1, tonumber(ARGV[at] or '0') do post(ARGV[at + 2 * i - 1], ARGV[at + 2 * i]) end
end

-- Arguments from `at` on as push.lua says; the reply is a list of strings. Writes nothing when it refuses.
local function accept(at)
  local kept, run, is_graph, size = ARGV[at] == '1', ARGV[at + 1], ARGV[at + 2] ~= '0', tonumber(ARGV[at + 3])
  is_posted = ARGV[at + 2] == '2'
  if kept then
    local stored = redis.call('GET', K.reply)
    if stored then return unpack_list(stored) end
  end
  local next_at = at + 4 + size * STRIDE
  read_items(at + 4, size)
  if is_graph then
    for i = 1, size do
      if codes[i] == 3 then return { 'full', tostring(i) } end
    end
    local refusal
    refusal, next_at = read_dependencies(next_at)
    refusal = refusal or find_cycle(10000)
    if refusal then return refusal end
  end
  next_at = read_traces(next_at)
  touch_dependencies(run)
  touch_all()
  touch_minute()

  write_payloads()
  for _, item in ipairs(accepted) do
    if item.is_blocked then write_edges(item) end
  end
  flush()
  for _, item in ipairs(moved) do -- debounce: the last payload counts, and the wait starts again
    local due = now + tonumber(ARGV[item.at + 13])
    redis.call('HSET', task_key(item.moves), 'due', exact(due), unpack(item.trace and { 'trace', item.trace } or {}))
    zadd(K['state:scheduled'], due, item.moves)
  end
  local wakes = false
  for _, item in ipairs(accepted) do wakes = write_item(item, run) or wakes end
  for digest, stored in pairs(uniques) do
    redis.call('SET', unique_key(digest), pack({ stored[1], stored[2] }), 'PX', exact(math.ceil(stored[3] / 1000) + 1000))
  end
  post_parts(next_at)
  if #accepted > 0 then
    count('pushed', #accepted)
    tally('pushed', #accepted)
  end
  commit()
  if ring_grew or wakes then redis.call('ZADD', K.wake, 0, 'ready') end
  local reply = { table.concat(codes), unpack(others) }
  if kept then redis.call('SET', K.reply, pack(reply), 'PX', 120000) end
  return reply
end
