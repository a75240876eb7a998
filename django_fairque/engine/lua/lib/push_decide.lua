-- Read the tasks of a push and decide about each: accepted, a duplicate, refused, or a replacement. Nothing is written here
-- (lib/push_write.lua writes). Used by push, deliver and fire.
--
-- include numbers calls keys lists options clock slot writes records users plans bounds task_record limits moves push forms

local push_decide = {}

local CHUNK = calls.CHUNK

local MOST_REPLACED = 100 -- waiting tasks in a push, and one more for each accepted task
local REPLACED = 'replaced by a newer task of limit '
push_decide.REPLACED = REPLACED

local seen, pending -- in this push: the user by task id; the number of accepted tasks by user

-- Return whether the task's id is taken. `is_conflict` is set if a task of another user has the id, because that is
-- other work. A part of a graph can't be refused any more, because the graph was accepted as a whole.
local function is_duplicate(item, some_exist)
  local user_name = ARGV[item.at + 1]
  if seen[item.id] then
    item.is_conflict = seen[item.id] ~= user_name and not push.is_posted
    return true
  end
  seen[item.id] = user_name
  if push.delivered and push.delivered[item.id] then -- an earlier call of deliver.lua has accepted the task
    item.is_repeat = true
    return true
  end
  if not some_exist then return false end
  slot.touch(keys.payload(item.id))
  local task = task_record.read(item.id)
  if not task then
    local size = calls.attempt('HLEN', keys.task(item.id))
    if not size then calls.refuse_damaged(keys.task(item.id)) end
    item.has_rest = size > 0
    return false
  end
  if not item.form.is_chosen then
    item.is_repeat = true
    return true
  end
  if task.user ~= user_name then
    item.is_conflict = not push.is_posted
    return true
  end
  if not push.is_ended(task.state) then return true end
  -- The earlier task has ended, so its id is free again and its data is replaced. While its dependents are being
  -- resolved, the id is still taken.
  if task.waited and redis.call('ZSCORE', K.resolving, task.id) then return true end
  item.before = task
  if task.raw.result_size then bounds.touch_result(user_name) end
  return false
end

-- Return the id of the task under which this work is already known, if its uniqueness window is open and that task was
-- not canceled. Otherwise return nil.
local function known_as(item, key)
  if not key then return nil end
  local stored = push.uniques[key]
  if not stored then
    local value = redis.call('GET', key)
    stored = value and lists.unpack(value)
  end
  local until_moment = stored and tonumber(stored[2])
  if not stored or until_moment <= clock.now then return nil end
  local earlier = push.accepted_by_id[stored[1]]
  local task = not earlier and task_record.read(stored[1])
  if not earlier and (not task or task.state == 'canceled') then return nil end
  if item.form.debounce then -- with debounce the last call counts, if the first task has not begun
    if earlier then
      earlier.last, earlier.expires = item, item.expires
      if earlier.size then
        records.add(earlier.owner, 'bytes', push.size_of(item) - earlier.size)
        earlier.size = push.size_of(item)
      end
    elseif (task.state == 'scheduled' and not task.done) or task.state == 'deferred' then
      item.moves, item.moves_of, item.is_deferred = stored[1], users.load(task.user), task.state == 'deferred'
      item.first_at, item.old_size = task.created, task.size
      slot.touch(keys.scheduled(task.user))
    else
      return nil
    end
  end
  return stored[1]
end

-- Check that the user's queue, a list or a set, has the right type before anything is written. This is done once in a
-- call, however many tasks of the user are accepted.
local function check_queue_type(user, is_critical)
  local checked_field = is_critical and 'checked_critical' or 'checked_normal'
  if user[checked_field] then return end
  user[checked_field] = true
  local key = is_critical and keys.critical(user.name) or keys.normal(user.name)
  if not calls.attempt(is_critical and 'LLEN' or 'ZCARD', key) then calls.refuse_damaged(key) end
end

-- Replace the tasks that wait at a limit, oldest first. The next push replaces those beyond the bound.
local function replace_waiting(limit)
  local key, left = keys.limit_waiting(limit.id), MOST_REPLACED + #push.accepted - #push.replaced
  for _, id in ipairs(calls.attempt('ZRANGE', key, 0, left - 1) or {}) do
    local task = task_record.read(id)
    local owner = task and task.state == 'queued' and users.load(task.user)
    if not owner then
      writes.zrem(key, id) -- an entry whose task was lost
    elseif not (push.is_replaced[id] or owner.is_damaged) then
      push.is_replaced[id] = true
      push.replaced[#push.replaced + 1] = task
      task.owner, task.replaced_by = owner, limit.id
      moves.touch(task)
    end
  end
end

-- Accept a task with limits. At a limit with `at_limit="newest"`, the task replaces the earlier tasks of all users.
local function accept_limits(item)
  limits.touch(item, true)
  for _, limit in ipairs(limits.accept(item)) do
    if limit.newest then limit.newest.dropped = REPLACED .. limit.id else replace_waiting(limit) end
    limit.newest = item
  end
end

local function decide(item, some_exist)
  local user = users.load(ARGV[item.at + 1])
  local waiting = user.ready + user['ready:7'] + user['ready:0'] + user.limited + user.sched + user.deferred + (pending[user] or 0)
  local limit = user.backlog or (options.max_backlog > 0 and options.max_backlog)
  local most_bytes = user.max_bytes or (options.max_backlog_bytes > 0 and options.max_backlog_bytes)
  if most_bytes then item.size = push.size_of(item) end
  if is_duplicate(item, some_exist) then return item.is_repeat and 1 or item.is_conflict and 4 or 2 end
  local key = item.form.unique ~= '' and keys.unique(user.name, item.form.unique) or nil
  local other, code = known_as(item, key), 1
  if other then
    code = 2
    push.alias[item.id] = other
    push.others[#push.others + 1] = tostring(item.index)
    push.others[#push.others + 1] = other
    if item.moves then push.moved[#push.moved + 1] = item end
  elseif limit and waiting >= limit and not push.is_posted then
    return 3
  elseif most_bytes and user.bytes + item.size > most_bytes and not push.is_posted then
    return 3
  elseif item.limits and not push.is_posted and limits.refuses(item, user.name) then
    return 5
  else
    item.owner = user
    if item.limits then accept_limits(item) end
    pending[user] = (pending[user] or 0) + 1
    if item.size then records.add(user, 'bytes', item.size) end
    local accepted = push.accepted
    accepted[#accepted + 1] = item
    push.accepted_by_id[item.id] = item
    if user.is_damaged then calls.refuse_damaged(user.key) end
    check_queue_type(user, item.priority == 6)
    if (item.due or item.form.debounce) and not user.touched_scheduled then
      user.touched_scheduled = true
      if not calls.attempt('ZCARD', keys.scheduled(user.name)) then calls.refuse_damaged(keys.scheduled(user.name)) end
    end
  end
  if key then
    slot.touch(key)
    local window = item.form.window
    if code == 1 or item.moves then push.uniques[key] = { other or item.id, numbers.exact(clock.now + window), window } end
  end
  return code
end

local counted_from -- the moment from which delays and expiries are counted if they are given as lengths of time

-- Return the item of a task: a table like that of `task_record.read`, with the values that are known before the task is
-- written.
local NOTHING = {}
local function read_item(index, at, known_forms)
  local id, form = ARGV[at], known_forms[ARGV[at + 3]]
  local item = {
    index = index, id = id, at = at, form = form, priority = form.priority, raw = NOTHING, owner = false, ready = 0,
    key = keys.task(id), payload_key = keys.payload(id), limits = form.limits,
  }
  if form.delay then item.due = counted_from + form.delay elseif form.due then item.due = form.due end
  if form.lifetime then item.expires = counted_from + form.lifetime elseif form.expires then item.expires = form.expires end
  if form.sla then item.sla = form.sla end
  return item
end

-- Read the plans of users, which come after all other arguments. In a part of a graph, the time of its acceptance
-- follows them.
local PLANS = 'plans'
local function read_plans()
  local last = #ARGV - (push.is_posted and 1 or 0)
  if ARGV[last] ~= PLANS then return end
  local version, size = ARGV[last - 2], tonumber(ARGV[last - 1])
  for at = last - 2 - 3 * size, last - 3, 3 do
    plans.offer(users.load(ARGV[at]), ARGV[at + 1], counted_from - tonumber(ARGV[at + 2]), version)
  end
end

function push_decide.read_items(at)
  -- In a part of a graph, the last argument is the moment at which the whole graph was accepted (`post_parts`).
  local now, items, codes = clock.now, push.items, push.codes
  seen, pending = {}, {}
  counted_from = push.is_posted and math.min(now, tonumber(ARGV[#ARGV]) or now) or now
  read_plans()
  local size, kinds = tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4])
  local first, stride, known_forms = at + push.ITEMS, push.STRIDE, {}
  local first_form = first + size * stride
  for i = 1, kinds do known_forms[tostring(i)] = forms.read(ARGV[first_form + i - 1]) end
  local some_exist, names, user_names = false, { nil, nil }, { nil }
  for i = 1, size do
    local item = read_item(i, first + (i - 1) * stride, known_forms)
    items[i], names[2 * i - 1], names[2 * i] = item, item.key, item.payload_key
    user_names[i] = ARGV[item.at + 1]
  end
  users.preload(user_names)
  -- For a new task it is enough to check these two keys: if the slot had begun to move, a missing key would already
  -- have ended the call.
  for from = 1, #names, CHUNK do
    some_exist = some_exist or redis.call('EXISTS', unpack(names, from, math.min(from + CHUNK - 1, #names))) > 0
  end
  for _, item in ipairs(items) do codes[item.index] = decide(item, some_exist) end
  return first_form + kinds
end
