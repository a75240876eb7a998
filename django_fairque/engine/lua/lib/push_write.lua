-- Accept tasks, each into its state. Everything has been read and decided before (lib/push_decide.lua,
-- lib/push_dependencies.lua); here all of it is written. Used by push, deliver and fire.

local accept -- all else here is its own: a script has room for 200 names
do

-- The traces of those tasks that belong to one.
local function read_traces(at)
  for i = 1, tonumber(ARGV[at] or '0') do
    items[tonumber(ARGV[at + 2 * i - 1])].trace = ARGV[at + 2 * i]
  end
  return at + 1 + 2 * tonumber(ARGV[at] or '0')
end

local function set_strings(list) -- keys and values in turns
  for first = 1, #list, CHUNK do
    redis.call('MSET', unpack(list, first, math.min(first + CHUNK - 1, #list)))
  end
end

local function put(list, size, field, value)
  list[size + 1], list[size + 2] = field, value
  return size + 2
end

-- The fields of its record and how many strings they are: in the list of its form, valid until the next one is requested.
local function fields_of(item, run, state, due)
  local list, size = item.form.record, item.form.size
  list[2], list[4], list[6] = state, item.owner.name, argument(item.ready)
  if due then size = put(list, size, 'due', exact(due)) end
  if item.form.delay then size = put(list, size, 'delay', exact(item.form.delay)) end
  if item.form.lifetime and item.expires then size = put(list, size, 'expires', exact(item.expires)) end
  if run ~= '' then size = put(list, size, 'run', run) end
  if item.size and state ~= 'canceled' then size = put(list, size, 'size', exact(item.size)) end
  if item.parents and #item.parents > 0 then size = put(list, size, 'parents', pack(item.parents)) end
  if item.is_blocked and item.policy ~= 'wait' then size = put(list, size, 'policy', item.policy) end
  if item.waited then size = put(list, size, 'waited', '1') end
  if item.before and item.before.raw.watched then size = put(list, size, 'watched', '1') end
  local trace = (item.last or item).trace
  if trace then size = put(list, size, 'trace', trace) end
  return list, size
end

-- Which tasks get a head in front of their payloads, and no record (lib/heads.lua): those that go straight into their user's normal
-- queue, and with which nothing is to be done but to start them. With the rest of a damaged record (`has_rest`), its fields would count.
local function choose_heads(run)
  if run ~= '' then return end
  for _, item in ipairs(accepted) do
    local common = item.form.common
    local has_more = item.before or item.has_rest or item.last or item.dropped or item.parents or item.waited or item.size or item.owner.sla
    item.has_head = common and not has_more and heads.fits(item.owner.name, item.trace, common)
  end
end

-- The payload of an ended task goes, and its head with it: its record gets what was in the head.
local function keep_facts(task)
  local fields = {}
  for field, value in pairs(task.raw) do
    fields[#fields + 1] = field
    fields[#fields + 1] = value
  end
  redis.call('HSET', task.key, unpack(fields))
end

-- Payloads and edges are written before the records: a push that ended between them and is repeated gets the reply that the task
-- is there, and what is there must be all of it. A payload without a head and a record is nobody's, and the checker removes it.
local function write_payloads()
  local payloads = {}
  for _, item in ipairs(moved) do
    payloads[#payloads + 1], payloads[#payloads + 2] = payload_key(item.moves), ARGV[item.at + 2]
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
    redis.call('HSET', key, 'expires', exact(expires))
  else
    redis.call('HDEL', key, 'expires')
  end
end

-- Write the new record in place of an ended one, if there is one. Old fields that would apply to the new task are
-- removed first (an old expiry would end it). The facts about the old task's end are removed last: without them a dead
-- letter could be neither requeued nor discarded.
local OF_AN_END = { failure = 1, reason = 1, ended = 1, result = 1, result_size = 1, short = 1, done = 1, worker = 1, token = 1, started = 1 }
local function write_record(item, run, state, due)
  local key, fields, size = record_keys[item.index], fields_of(item, run, state, due)
  if not item.before then
    redis.call('HSET', key, unpack(fields, 1, size))
    if item.last then write_expiry(key, item.expires) end
    return
  end
  local first, last = {}, {}
  for i = 1, size, 2 do item.before.raw[fields[i]] = nil end
  item.before.raw.died = nil -- goes on counting: an id of an earlier death must not mean a later one
  for field in pairs(item.before.raw) do
    local list = OF_AN_END[field] and last or first
    list[#list + 1] = field
  end
  if #first > 0 then redis.call('HDEL', key, unpack(first)) end
  redis.call('HSET', key, unpack(fields, 1, size))
  if #last > 0 then redis.call('HDEL', key, unpack(last)) end
  if item.last then write_expiry(key, item.expires) end
end

-- Debounce: the last payload counts and the last moment to start, and the wait starts again, until the maximum wait since the first
-- call is over. One that waits for others goes on waiting for those of the first call.
local function move(item)
  local key, due = task_key(item.moves), math.min(now + item.form.debounce, math.max(now, item.first_at + item.form.max_wait))
  redis.call('HSET', key, 'due', exact(due), unpack(item.trace and { 'trace', item.trace } or {}))
  write_expiry(key, item.expires)
  if item.old_size then
    redis.call('HSET', key, 'size', exact(size_of(item)))
    add(item.moves_of, 'bytes', size_of(item) - item.old_size)
  end
  if item.is_deferred then
    zadd(K['state:deferred'], item.expires or NEVER, item.moves)
    if item.expires then look_at(item.expires) end
  else
    local user = item.moves_of
    zadd(K['state:scheduled'], due, item.moves)
    zadd(scheduled_key(user.name), due, item.moves)
    user.first_due = math.min(user.first_due or due, due)
    set(user, 'sched', user.sched) -- to be saved
  end
end

-- Writes one accepted task; returns whether an idle worker must hear of it although nobody joined the ring.
local function write_item(item, run)
  local user = item.owner
  set_stat('stamp', math.max(now - EPOCH, stat.stamp + 1)) -- strictly growing: exact FIFO within one bulk push
  item.ready = EPOCH + stat.stamp
  if item.before then
    local size = item.before.raw.result_size and number(item.before.raw.result_size)
    if size then bounds.forget_result(user, item.id, size) end
    if item.before.state == 'failed' then
      count('lying:' .. (item.before.raw.failure or 'failed'), -1)
      add(user, 'dead', -1)
    end
    -- One that is canceled again stays where it is: removals are written after additions.
    if not (item.dropped and item.before.state == 'canceled') then zrem(K['state:' .. item.before.state], item.id) end
  end
  local left = item.before and item.before.raw.run
  if left and left ~= run then srem(run_key(left), item.id) end
  if run ~= '' then sadd(run_key(run), item.id) end
  local due = item.form.debounce and now + item.form.debounce or item.due
  if item.dropped then
    write_record(item, run, 'canceled', due)
    remember(item.id, 'canceled', '', item.dropped, '')
    item.key = record_keys[item.index]
    if item.size then add(user, 'bytes', -item.size) end
    item.size = nil
    to_ended(item, 'canceled', result_ttl)
    count('canceled', 1)
    return item.waited
  elseif item.is_blocked then
    write_record(item, run, 'deferred', due)
    zadd(K['state:deferred'], item.expires or NEVER, item.id)
    if item.expires then look_at(item.expires) end
    add(user, 'deferred', 1)
    return false
  elseif due and due > now then
    write_record(item, run, 'scheduled', due)
    local is_first = stat.look == 0 or due < stat.look -- an idle worker must sleep less long
    schedule(user, item.id, due)
    return is_first
  end
  write_record(item, run, 'queued', due)
  queue_up(user, item, false)
  return false
end

-- Write consecutive tasks with heads, of one user and one form, from `accepted[at]` on, as `write_item` does. The work
-- that is the same for all of them is done once, which takes a tenth of the time of a large push. Returns the number of
-- tasks.
local function write_alike(at, strings)
  local first, size = accepted[at], 0
  local user, form = first.owner, first.form
  local stamp = math.max(now - EPOCH, stat.stamp + 1)
  first.ready = EPOCH + stamp
  local moment, place = queued_look(first), place_of(first)
  local before, behind = heads.before(user.name), heads.behind(nil, form.common)
  look_at(moment)
  note_eldest(user, first)
  local queued, entries = added_to(K['state:queued']), added_to(normal_key(user.name))
  local n, m, item = #queued, #entries, first
  repeat
    item.ready = first.ready + size
    local rest = item.trace and heads.behind(item.trace, form.common) or behind
    strings[#strings + 1] = item.payload_key
    strings[#strings + 1] = before .. exact(item.ready) .. rest .. ARGV[item.at + 2]
    queued[n + 1], queued[n + 2] = moment + size, item.id
    entries[m + 1], entries[m + 2] = place + size, item.id
    n, m, size = n + 2, m + 2, size + 1
    item = accepted[at + size]
  until not item or item.owner ~= user or item.form ~= form or not item.has_head
  set_stat('stamp', stamp + size - 1)
  add_ready(user, form.priority, size)
  return size
end

local function write_accepted(run)
  local wakes, at, strings = false, 1, {}
  while at <= #accepted do
    if accepted[at].has_head then
      at = at + write_alike(at, strings)
    else
      wakes = write_item(accepted[at], run) or wakes
      at = at + 1
    end
  end
  set_strings(strings) -- before they are in a queue: additions are still buffered
  return wakes
end

-- Parts of a graph for other shards: posted in the same call, so that the graph is accepted as a whole. Delays of its tasks count
-- from now, also of a part that arrives later.
local function post_parts(at)
  for i = 1, tonumber(ARGV[at] or '0') do post(ARGV[at + 2 * i - 1], ARGV[at + 2 * i] .. pack({ now_text })) end
end

-- The workers would make a dead letter of a task without a signature, so it is refused while its sender listens. A signature is
-- behind a byte that JSON does not contain; whether it is the right one, only those who have the key can say.
local function refuse_unsigned(at)
  local SEPARATOR, MOST_BYTES = '\30', 64
  for i = 1, tonumber(ARGV[at + 3]) do
    local first = at + ITEMS + (i - 1) * STRIDE
    if not string.find(ARGV[first + 2], SEPARATOR, -MOST_BYTES, true) then
      error({ err = 'UNSIGNED workers of this queue run signed tasks only' })
    end
  end
end

-- Arguments from `at` on as push.lua says; the reply is a list of strings. Writes nothing when it refuses.
function accept(at, may_be_unsigned)
  local kept, run, is_graph = ARGV[at] == '1', ARGV[at + 1], ARGV[at + 2] ~= '0'
  is_posted = ARGV[at + 2] == '2'
  if kept then
    local stored = redis.call('GET', K.reply)
    if stored then return unpack_list(stored) end
  end
  if stat.signed > 0 and not (is_posted or may_be_unsigned) then refuse_unsigned(at) end
  local next_at = read_items(at)
  if is_graph then
    for i = 1, #items do
      if codes[i] == 3 then return { 'full', tostring(i) } end
      if codes[i] == 4 then return { 'conflict', tostring(i) } end
    end
    local refusal
    refusal, next_at = read_dependencies(next_at)
    refusal = refusal or find_cycle(10000)
    if refusal then return refusal end
  end
  next_at = read_traces(next_at)
  touch_dependencies(run, is_graph)
  touch_minute()
  touch_all()

  choose_heads(run)
  write_payloads()
  if is_graph then write_edges() end
  for _, item in ipairs(moved) do move(item) end
  local wakes = write_accepted(run)
  for key, stored in pairs(uniques) do
    redis.call('SET', key, pack({ stored[1], stored[2] }), 'PX', exact(math.ceil(stored[3] / 1000) + 1000))
  end
  post_parts(next_at)
  if #accepted > 0 then
    count('pushed', #accepted)
    tally('pushed', #accepted)
  end
  commit()
  if ring_grew or wakes then redis.call('ZADD', K.wake, 0, 'ready') end
  local reply = { table.concat(codes), unpack(others) }
  if kept then
    local packed = pack(reply)
    redis.call('SET', K.reply, packed, 'PX', reply_ttl(#packed))
    flush_stats()
  end
  return reply
end

end
