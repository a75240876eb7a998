-- Read the tasks of a push and decide about each: accepted, a duplicate, refused, or a replacement. Nothing is written here
-- (lib/push_write.lua writes). Used by push, deliver and fire.

local ITEMS, STRIDE = 5, 4 -- where the tasks begin, behind `at` as in `accept`; arguments of one

local record_keys, items, codes, accepted, accepted_by_id, seen, pending, delivered, is_posted
local others, moved, alias, uniques = {}, {}, {}, {} -- code that adds to `moved` or `alias` adds to `others` too
each_call(function()
  record_keys, items, codes, accepted, accepted_by_id, seen, pending = {}, {}, {}, {}, {}, {}, {}
  if others[1] then others, moved, alias = {}, {}, {} end
  if next(uniques) then uniques = {} end
  delivered, is_posted = nil, false
end)

local function is_ended(state) return state == 'finished' or state == 'failed' or state == 'canceled' end

-- The bytes that a task counts against its user's limit: its payload, and an estimate for its record and its places.
local function size_of(item)
  local TASK_OVERHEAD = 500
  return #ARGV[item.at + 2] + TASK_OVERHEAD
end

local read_items -- all else here is its own: a script has room for 200 names
do

-- Whether the id is taken. If a task of another user has it, `is_conflict` is set: that is not the same work. A part of a graph was
-- accepted with the whole, so it can't be refused any more.
local function is_duplicate(item, some_exist)
  local user_name = ARGV[item.at + 1]
  if seen[item.id] then
    item.is_conflict = seen[item.id] ~= user_name and not is_posted
    return true
  end
  seen[item.id] = user_name
  if delivered and delivered[item.id] then -- by an earlier call of deliver.lua
    item.is_repeat = true
    return true
  end
  if not some_exist then return false end
  touch(payload_key(item.id))
  local task = read_task(item.id)
  if not task then
    local size = attempt('HLEN', task_key(item.id))
    if not size then refuse_damaged(task_key(item.id)) end
    item.has_rest = size > 0
    return false
  end
  if not item.form.is_chosen then
    item.is_repeat = true
    return true
  end
  if task.user ~= user_name then
    item.is_conflict = not is_posted
    return true
  end
  if not is_ended(task.state) then return true end
  -- Ended: the id is free again and what is kept of the old task goes; but not while its dependents are being resolved.
  if task.waited and redis.call('ZSCORE', K.resolving, task.id) then return true end
  item.before = task
  if task.raw.result_size then bounds.touch_result(user_name) end
  return false
end


-- The task under which this work is known already, if its window is still open and the task was not canceled.
local function known_as(item, key)
  if not key then return nil end
  local stored = uniques[key]
  if not stored then
    local value = redis.call('GET', key)
    stored = value and unpack_list(value)
  end
  local until_moment = stored and tonumber(stored[2])
  if not stored or until_moment <= now then return nil end
  local earlier = accepted_by_id[stored[1]]
  local task = not earlier and read_task(stored[1])
  if not earlier and (not task or task.state == 'canceled') then return nil end
  if item.form.debounce then -- the last one counts, if the first has not begun
    if earlier then
      earlier.last, earlier.expires = item, item.expires
      if earlier.size then
        add(earlier.owner, 'bytes', size_of(item) - earlier.size)
        earlier.size = size_of(item)
      end
    elseif (task.state == 'scheduled' and not task.done) or task.state == 'deferred' then
      item.moves, item.moves_of, item.is_deferred = stored[1], load_user(task.user), task.state == 'deferred'
      item.first_at, item.old_size = task.created, task.size
      touch(scheduled_key(task.user))
    else
      return nil
    end
  end
  return stored[1]
end

-- The list or set that a user's task may go to, which must be one before anything is written: once a call, however many of
-- the user's tasks go there.
local function check_queue_type(user, is_critical)
  local checked_field = is_critical and 'checked_critical' or 'checked_normal'
  if user[checked_field] then return end
  user[checked_field] = true
  local key = is_critical and critical_key(user.name) or normal_key(user.name)
  if not attempt(is_critical and 'LLEN' or 'ZCARD', key) then refuse_damaged(key) end
end

local function decide(item, some_exist)
  local user = load_user(ARGV[item.at + 1])
  local waiting = user.ready + user.sched + user.deferred + (pending[user] or 0)
  local limit = user.backlog or (max_backlog > 0 and max_backlog)
  local most_bytes = user.max_bytes or (max_backlog_bytes > 0 and max_backlog_bytes)
  if most_bytes then item.size = size_of(item) end
  if is_duplicate(item, some_exist) then return item.is_repeat and 1 or item.is_conflict and 4 or 2 end
  local key = item.form.unique ~= '' and unique_key(user.name, item.form.unique) or nil
  local other, code = known_as(item, key), 1
  if other then
    code = 2
    alias[item.id] = other
    others[#others + 1] = tostring(item.index)
    others[#others + 1] = other
    if item.moves then moved[#moved + 1] = item end
  elseif limit and waiting >= limit and not is_posted then
    return 3
  elseif most_bytes and user.bytes + item.size > most_bytes and not is_posted then
    return 3
  else
    item.owner = user
    pending[user] = (pending[user] or 0) + 1
    if item.size then add(user, 'bytes', item.size) end
    accepted[#accepted + 1] = item
    accepted_by_id[item.id] = item
    if user.is_damaged then refuse_damaged(user.key) end
    check_queue_type(user, item.priority == 6)
    if (item.due or item.form.debounce) and not user.touched_scheduled then
      user.touched_scheduled = true
      if not attempt('ZCARD', scheduled_key(user.name)) then refuse_damaged(scheduled_key(user.name)) end
    end
  end
  if key then
    touch(key)
    local window = item.form.window
    if code == 1 or item.moves then uniques[key] = { other or item.id, exact(now + window), window } end
  end
  return code
end

-- The values that tasks of one form have in common, computed once for all of them. `record` holds the fields of a new
-- record: first the fields that differ, whose values `fields_of` fills in, and the equal ones; after `size`, fields
-- that only some tasks have. `common` is the last part of the heads (lib/heads.lua) of tasks that go straight into
-- their user's normal queue and only wait there to be started.
local PLUS = 43 -- the byte
local function time_of(text) -- a moment, or how long after the acceptance
  if string.byte(text) == PLUS then return nil, tonumber(string.sub(text, 2)) end
  return tonumber(text)
end
local MAX_WAITS = 10 -- by default a task is put off for this many debounce times at most
local OPTIONAL = { [1] = 'name', [5] = 'expires', [7] = 'timeout', [8] = 'sla', [13] = 'retries', [14] = 'max_deliveries' }
local function read_form(text)
  local values = unpack_list(text)
  local due, delay = time_of(values[4])
  local expires, lifetime = time_of(values[5])
  local has_times = values[4] ~= '' or values[5] ~= ''
  if lifetime then values[5] = '' end -- each task gets another moment
  local record = { 'state', '', 'user', '', 'created', '', 'priority', values[2], 'max_retries', values[6] }
  for at, field in pairs(OPTIONAL) do
    if values[at] and values[at] ~= '' then
      record[#record + 1] = field
      record[#record + 1] = values[at]
    end
  end
  local debounce = tonumber(values[11])
  local is_plain = values[2] ~= '6' and not has_times and values[8] == '' and not debounce
  return {
    common = is_plain and heads.common(record), record = record, size = #record, priority = tonumber(values[2]), is_chosen = values[3] == '1',
    due = due, delay = delay, expires = expires, lifetime = lifetime, sla = tonumber(values[8]),
    unique = values[9], window = tonumber(values[10]) or debounce or 0, debounce = debounce,
    max_wait = tonumber(values[12]) or debounce and MAX_WAITS * debounce,
  }
end

-- Most calls repeat the options of an earlier one, so the last ones are kept; not those of a single task, nor large ones.
local KEPT, LARGE = 100, 1000
local kept, number_kept = {}, 0
local function form_of(text)
  local form = kept[text]
  if form then return form end
  form = read_form(text)
  if form.unique == '' and not form.due and #text <= LARGE then
    if number_kept == KEPT then kept, number_kept = {}, 0 end
    kept[text], number_kept = form, number_kept + 1
  end
  return form
end

local counted_from -- the moment from which delays and expiries are counted that are lengths of time

-- An item is the task that it will be (see `read_task`), as far as it is known before it is written.
local NOTHING = {}
local function read_item(index, at, forms)
  local id, form = ARGV[at], forms[ARGV[at + 3]]
  local item = { index = index, id = id, at = at, form = form, priority = form.priority, raw = NOTHING, owner = false, ready = 0 }
  if form.delay then item.due = counted_from + form.delay elseif form.due then item.due = form.due end
  if form.lifetime then item.expires = counted_from + form.lifetime elseif form.expires then item.expires = form.expires end
  if form.sla then item.sla = form.sla end
  record_keys[index], item.payload_key = task_key(id), payload_key(id)
  return item
end

function read_items(at)
  -- A part of a graph says as its last argument when the whole was accepted (`post_parts`).
  counted_from = is_posted and math.min(now, tonumber(ARGV[#ARGV]) or now) or now
  local size, kinds = tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4])
  local first_form, forms = at + ITEMS + size * STRIDE, {}
  for i = 1, kinds do forms[tostring(i)] = form_of(ARGV[first_form + i - 1]) end
  local some_exist, keys = false, {}
  for i = 1, size do
    items[i] = read_item(i, at + ITEMS + (i - 1) * STRIDE, forms)
    keys[2 * i - 1], keys[2 * i] = record_keys[i], items[i].payload_key
  end
  -- These two keys are enough to check for a new task: if the slot had begun to move, a key that is not here would have
  -- ended the call already.
  for first = 1, #keys, CHUNK do
    some_exist = some_exist or redis.call('EXISTS', unpack(keys, first, math.min(first + CHUNK - 1, #keys))) > 0
  end
  for _, item in ipairs(items) do codes[item.index] = decide(item, some_exist) end
  return first_form + kinds
end

end
