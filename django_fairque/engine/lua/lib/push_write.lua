-- Accept the tasks of a push, each into its state. lib/push_decide.lua and lib/push_dependencies.lua have read and
-- decided everything before; this library writes it. Used by push, deliver and fire.
--
-- include heads numbers calls keys lists options counters clock replies slot statistics writes outbox history records ring queues saving bounds deadlines moves removal push push_decide push_dependencies

local push_write = {}

local CHUNK, EPOCH = calls.CHUNK, clock.EPOCH

-- Read the traces of the tasks that belong to a trace.
local function read_traces(at)
  for i = 1, tonumber(ARGV[at] or '0') do
    push.items[tonumber(ARGV[at + 2 * i - 1])].trace = ARGV[at + 2 * i]
  end
  return at + 1 + 2 * tonumber(ARGV[at] or '0')
end

local function set_strings(list) -- keys and values alternate
  for first = 1, #list, CHUNK do
    redis.call('MSET', unpack(list, first, math.min(first + CHUNK - 1, #list)))
  end
end

local function put(list, size, field, value)
  list[size + 1], list[size + 2] = field, value
  return size + 2
end

-- Return a list with the fields of the task's record, and its length. The list belongs to the task's form and is valid
-- until the next call for this form.
local function fields_of(item, run, state, due)
  local list, size = item.form.record, item.form.size
  list[2], list[4], list[6] = state, item.owner.name, numbers.argument(item.ready)
  if due then size = put(list, size, 'due', numbers.exact(due)) end
  if item.form.delay then size = put(list, size, 'delay', numbers.exact(item.form.delay)) end
  if item.form.lifetime and item.expires then size = put(list, size, 'expires', numbers.exact(item.expires)) end
  if run ~= '' then size = put(list, size, 'run', run) end
  if item.size and state ~= 'canceled' then size = put(list, size, 'size', numbers.exact(item.size)) end
  if item.parents and #item.parents > 0 then size = put(list, size, 'parents', lists.pack(item.parents)) end
  if item.is_blocked and item.policy ~= 'wait' then size = put(list, size, 'policy', item.policy) end
  if item.waited then size = put(list, size, 'waited', '1') end
  if item.before and item.before.raw.watched then size = put(list, size, 'watched', '1') end
  local trace = (item.last or item).trace
  if trace then size = put(list, size, 'trace', trace) end
  return list, size
end

-- Choose the tasks that get a head in front of their payload and no record (lib/heads.lua): tasks that go straight into
-- their user's normal queue and only wait there for their start. A task with the rest of a damaged record (`has_rest`)
-- gets no head, because the old fields would count.
local function choose_heads(accepted, run)
  if run ~= '' then return end
  for _, item in ipairs(accepted) do
    local common = item.form.common
    local has_more = item.before or item.has_rest or item.last or item.dropped or item.parents or item.waited or item.size or item.owner.sla
    item.has_head = common and not has_more and heads.fits(item.owner.name, item.trace, common)
  end
end

-- Write the fields from the head of an ended task into its record, because its payload is overwritten, and the head
-- with it.
local function keep_facts(task)
  local fields = {}
  for field, value in pairs(task.raw) do
    fields[#fields + 1] = field
    fields[#fields + 1] = value
  end
  redis.call('HSET', task.key, unpack(fields))
end

-- Payloads and edges are written before the records. If a push is interrupted and repeated, a task with a record counts
-- as accepted, so all its other data must exist. A payload without a head and a record belongs to no task, and the
-- checker removes it.
local function write_payloads(accepted, moved)
  local payloads = {}
  for _, item in ipairs(moved) do
    payloads[#payloads + 1], payloads[#payloads + 2] = keys.payload(item.moves), ARGV[item.at + 2]
  end
  for _, item in ipairs(accepted) do
    if not item.has_head then
      if item.before and item.before.payload_at then keep_facts(item.before) end
      payloads[#payloads + 1], payloads[#payloads + 2] = item.payload_key, ARGV[(item.last or item).at + 2]
    end
  end
  set_strings(payloads)
end

local function write_expiry(key, expires)
  if expires then
    redis.call('HSET', key, 'expires', numbers.exact(expires))
  else
    redis.call('HDEL', key, 'expires')
  end
end

-- Write the new record. The new record replaces that of an ended task with this id, if there is one. Old fields that
-- would apply to the new task are removed first (an old expiry would end it). The fields about the old task's end are
-- removed last: without them a dead letter could be neither requeued nor discarded.
local OF_AN_END = { failure = 1, reason = 1, ended = 1, result = 1, result_size = 1, short = 1, done = 1, worker = 1, token = 1, started = 1 }
local function write_record(item, run, state, due)
  local key, fields, size = item.key, fields_of(item, run, state, due)
  if not item.before then
    redis.call('HSET', key, unpack(fields, 1, size))
    if item.last then write_expiry(key, item.expires) end
    return
  end
  local first, last = {}, {}
  for i = 1, size, 2 do item.before.raw[fields[i]] = nil end
  item.before.raw.died = nil -- the number of deaths goes on counting, so that the number of an earlier dead letter never identifies a later one
  for field in pairs(item.before.raw) do
    local list = OF_AN_END[field] and last or first
    list[#list + 1] = field
  end
  if #first > 0 then redis.call('HDEL', key, unpack(first)) end
  redis.call('HSET', key, unpack(fields, 1, size))
  if #last > 0 then redis.call('HDEL', key, unpack(last)) end
  if item.last then write_expiry(key, item.expires) end
end

-- Debounce a task that already waits: the last payload and start time count, and the debounce time starts again, until
-- the maximum wait since the first call is over. A deferred task keeps the dependencies of the first call.
local function move(item)
  local key, due = keys.task(item.moves), math.min(clock.now + item.form.debounce, math.max(clock.now, item.first_at + item.form.max_wait))
  redis.call('HSET', key, 'due', numbers.exact(due), unpack(item.trace and { 'trace', item.trace } or {}))
  write_expiry(key, item.expires)
  if item.old_size then
    redis.call('HSET', key, 'size', numbers.exact(push.size_of(item)))
    records.add(item.moves_of, 'bytes', push.size_of(item) - item.old_size)
  end
  if item.is_deferred then
    writes.zadd(K['state:deferred'], item.expires or clock.NEVER, item.moves)
    if item.expires then counters.note_due(item.expires) end
  else
    local user = item.moves_of
    writes.zadd(K['state:scheduled'], due, item.moves)
    writes.zadd(keys.scheduled(user.name), due, item.moves)
    user.first_due = math.min(user.first_due or due, due)
    records.set(user, 'sched', user.sched) -- marks the user as changed, so that it is saved
  end
end

-- Write one accepted task. Returns whether an idle worker must be woken although no user joined the ring.
local function write_item(item, run)
  local user = item.owner
  counters.set('stamp', math.max(clock.now - EPOCH, counters.shard.stamp + 1)) -- strictly growing, so that tasks of one bulk push keep their order
  item.ready = EPOCH + counters.shard.stamp
  if item.before then
    local size = item.before.raw.result_size and numbers.read(item.before.raw.result_size)
    if size then bounds.forget_result(user, item.id, size) end
    if item.before.state == 'failed' then
      counters.count('lying:' .. (item.before.raw.failure or 'failed'), -1)
      records.add(user, 'dead', -1)
    end
    -- A task that is canceled again stays in this registry, because removals are written after additions.
    if not (item.dropped and item.before.state == 'canceled') then writes.zrem(K['state:' .. item.before.state], item.id) end
  end
  local left = item.before and item.before.raw.run
  if left and left ~= run then writes.srem(keys.run(left), item.id) end
  if run ~= '' then
    writes.sadd(keys.run(run), item.id)
    writes.zadd(P .. 'runs', clock.now, run)
  end
  local due = item.form.debounce and clock.now + item.form.debounce or item.due
  if item.dropped then
    write_record(item, run, 'canceled', due)
    history.add(item.id, 'canceled', '', item.dropped, '')
    if item.size then records.add(user, 'bytes', -item.size) end
    item.size = nil
    moves.to_ended(item, 'canceled', options.result_ttl)
    counters.count('canceled', 1)
    return item.waited
  elseif item.is_blocked then
    write_record(item, run, 'deferred', due)
    writes.zadd(K['state:deferred'], item.expires or clock.NEVER, item.id)
    if item.expires then counters.note_due(item.expires) end
    records.add(user, 'deferred', 1)
    return false
  elseif due and due > clock.now then
    write_record(item, run, 'scheduled', due)
    local is_first = counters.shard.look == 0 or due < counters.shard.look -- an idle worker must wake up earlier than planned
    queues.schedule(user, item.id, due)
    return is_first
  end
  write_record(item, run, 'queued', due)
  moves.enter_queue(user, item, false)
  return false
end

-- Write consecutive tasks with heads, of one user and one form, from `accepted[at]` on, as `write_item` does. The work
-- that is the same for all of them is done once, which saves a tenth of the server's time for a large push. Returns the
-- number of tasks.
local function write_alike(accepted, at, strings)
  local first, size = accepted[at], 0
  local user, form = first.owner, first.form
  local stamp = math.max(clock.now - EPOCH, counters.shard.stamp + 1)
  first.ready = EPOCH + stamp
  local moment, place = deadlines.next_check(first), queues.score(first)
  local before, behind = heads.before(user.name), heads.behind(nil, form.common)
  counters.note_due(moment)
  queues.note_oldest(user, first)
  local queued, entries = writes.added_to(K['state:queued']), writes.added_to(keys.normal(user.name))
  local n, m, item = #queued, #entries, first
  repeat
    item.ready = first.ready + size
    local rest = item.trace and heads.behind(item.trace, form.common) or behind
    strings[#strings + 1] = item.payload_key
    strings[#strings + 1] = before .. numbers.exact(item.ready) .. rest .. ARGV[item.at + 2]
    queued[n + 1], queued[n + 2] = moment + size, item.id
    entries[m + 1], entries[m + 2] = place + size, item.id
    n, m, size = n + 2, m + 2, size + 1
    item = accepted[at + size]
  until not item or item.owner ~= user or item.form ~= form or not item.has_head
  counters.set('stamp', stamp + size - 1)
  queues.add_ready(user, form.priority, size)
  return size
end

local function write_accepted(accepted, run)
  local wakes, at, strings = false, 1, { nil, nil }
  while at <= #accepted do
    if accepted[at].has_head then
      at = at + write_alike(accepted, at, strings)
    else
      wakes = write_item(accepted[at], run) or wakes
      at = at + 1
    end
  end
  set_strings(strings) -- payloads are written before the tasks are in a queue: additions are still buffered
  return wakes
end

-- Post the parts of a graph for other shards in the call that accepts the graph, so that the graph is accepted as a
-- whole. Delays of the tasks count from now, also in a part that arrives later.
local function post_parts(at)
  for i = 1, tonumber(ARGV[at] or '0') do outbox.post(ARGV[at + 2 * i - 1], ARGV[at + 2 * i] .. lists.pack({ clock.now_text })) end
end

-- Refuse tasks without a signature while their sender can still get the error. The workers would turn such tasks into
-- dead letters. A signature follows a byte that JSON does not contain. Only a process with the key can check whether it
-- is right.
local function refuse_unsigned(at)
  local SEPARATOR, MOST_BYTES = '\30', 64
  for i = 1, tonumber(ARGV[at + 3]) do
    local first = at + push.ITEMS + (i - 1) * push.STRIDE
    if not string.find(ARGV[first + 2], SEPARATOR, -MOST_BYTES, true) then
      error({ err = 'UNSIGNED workers of this queue run signed tasks only' })
    end
  end
end

-- Accept the tasks of a push. The arguments from `at` on are those of push.lua from "nonce kept" on; `delivered` is
-- that of `push.begin`. The reply is a list of strings. A refused push writes nothing.
function push_write.accept(at, may_be_unsigned, delivered)
  local kept, run, is_graph = ARGV[at] == '1', ARGV[at + 1], ARGV[at + 2] ~= '0'
  push.begin(ARGV[at + 2] == '2', delivered)
  if kept then
    local stored = redis.call('GET', K.reply)
    if stored then return lists.unpack(stored) end
  end
  if counters.shard.signed > 0 and not (push.is_posted or may_be_unsigned) then refuse_unsigned(at) end
  local next_at = push_decide.read_items(at)
  if is_graph then
    for i = 1, #push.items do
      if push.codes[i] == 3 then return { 'full', tostring(i) } end
      if push.codes[i] == 4 then return { 'conflict', tostring(i) } end
      if push.codes[i] == 5 then return { 'limited', tostring(i) } end
    end
    local refusal
    refusal, next_at = push_dependencies.read(next_at)
    refusal = refusal or push_dependencies.find_cycle(10000)
    if refusal then return refusal end
  end
  next_at = read_traces(next_at)
  push_dependencies.touch(run, is_graph)
  statistics.touch_minute()
  slot.touch_all()

  local accepted, moved = push.accepted, push.moved
  choose_heads(accepted, run)
  write_payloads(accepted, moved)
  if is_graph then push_dependencies.write_edges() end
  for _, item in ipairs(moved) do move(item) end
  for _, task in ipairs(push.replaced) do removal.cancel(task, push_decide.REPLACED .. task.replaced_by) end
  local wakes = write_accepted(accepted, run)
  for key, stored in pairs(push.uniques) do
    redis.call('SET', key, lists.pack({ stored[1], stored[2] }), 'PX', numbers.exact(math.ceil(stored[3] / 1000) + 1000))
  end
  post_parts(next_at)
  if #accepted > 0 then
    counters.count('pushed', #accepted)
    statistics.tally('pushed', #accepted)
  end
  saving.commit()
  if ring.has_grown or wakes then
    redis.call('ZADD', K.wake, 0, 'ready')
    ring.wake_lanes(wakes)
  end
  local reply = { table.concat(push.codes), unpack(push.others) }
  if kept then
    local packed = lists.pack(reply)
    redis.call('SET', K.reply, packed, 'PX', replies.ttl(#packed))
    statistics.flush()
  end
  return reply
end
