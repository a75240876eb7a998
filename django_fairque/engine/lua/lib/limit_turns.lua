-- Turns at limits that have room for another task: choose the next user at a limit, and its next task. Used by
-- lib/turns.lua.
--
-- The first user at a limit is served next, before the entries of the ring, if its tag in the ring is at most
-- `ring.AHEAD` beyond the virtual time. If the ring is empty, the user is served in any case. The cost is charged to
-- the user's tag in the ring and to its tag at the limit, so no user gets more than its share in total. A user that
-- can't start a task, or is too far ahead, is parked: it is removed from the limit until it can start a task again, so
-- no call examines it before.
--
-- include calls keys counters clock slot writes records organizations ring users limits heap task_record next_task

local limit_turns = {}

local LANES = { 'urgent', 'normal', 'bulk' }
local PAGE, MOST_PAGES = 16, 4 -- the number of limits in a page, and of pages that a call reads
local MOST_USERS, MOST_OF_LIMIT = 40, 8 -- the number of users that a call examines although they can't start a task, in total and at one limit
local MOST_RETURNING = 16 -- parked users or organizations that return in a call, each at up to `MOST_PARKED` limits
local MOST_PARKED = 8

-- `skipped`: users that are too far ahead. If the ring becomes empty, they may start after all; otherwise they are parked at the end of the call.
local looked_at, has_unparked, skipped
each_call(function()
  looked_at = 0
  if not has_unparked or next(has_unparked) ~= nil then has_unparked = {} end -- the keys of this table are booleans, so `next` may return false
  if not skipped or skipped[1] then skipped = {} end
end)

-- Return the users of this lane at a limit, as far as they were read. `last` is the tag of the last one.
local function line_of(list, limit, lane)
  list.limit_lines = list.limit_lines or {}
  local line = list.limit_lines[lane .. limit.id]
  if line then return line end
  line = { users = heap.new(), read = 0, last = -math.huge, has_all = not list.is_in_turn }
  list.limit_lines[lane .. limit.id] = line
  if not list.is_in_turn and list.names[1] then
    for first = 1, #list.names, calls.CHUNK do
      local last = math.min(first + calls.CHUNK - 1, #list.names)
      local places = calls.attempt('ZMSCORE', keys.limit_users(limit.id, lane), unpack(list.names, first, last)) or {}
      for i, place in ipairs(places) do
        if place then heap.push(line.users, tonumber(place), list.names[first + i - 1]) end
      end
    end
  end
  return line
end

local function users_at(list, limit, lane)
  local line = line_of(list, limit, lane)
  local found = line.users
  while not line.has_all and (found.size == 0 or found.place[1] > line.last) do
    local page = calls.attempt('ZRANGE', keys.limit_users(limit.id, lane), line.read, line.read + PAGE - 1, 'WITHSCORES') or {}
    for i = 1, #page, 2 do
      line.read, line.last = line.read + 1, tonumber(page[i + 1])
      if not limit.gone[lane .. page[i]] then heap.push(found, line.last, page[i]) end
    end
    line.has_all = #page < 2 * PAGE
  end
  return found
end

-- Return the users of this lane at a limit, with the current position of the first user: a turn in another lane may
-- have moved it since it was read.
local function line_up(list, limit, lane)
  local found = users_at(list, limit, lane)
  while found.size > 0 do
    local now = limit.places[lane .. found.item[1]]
    if not now or now == found.place[1] then break end
    local name = heap.pop(found)
    heap.push(found, now, name)
    found = users_at(list, limit, lane)
  end
  return found
end

-- Return the window with the user's next tasks of this lane at the limit.
local FROM, TO = { urgent = '-inf', normal = '1e15', bulk = '7e15' }, { urgent = '(1e15', normal = '(7e15', bulk = '+inf' }
local function window_of(limit, user, lane)
  local window = limit.windows[lane .. user.name]
  if not window then
    window = { ids = {}, at = 1, step = 1 }
    limit.windows[lane .. user.name] = window
  end
  if window.at > #window.ids and not window.has_all then
    local found = calls.attempt('ZRANGEBYSCORE', keys.limit_queue(limit.id, user.name), FROM[lane], TO[lane], 'LIMIT', #window.ids, window.step) or {}
    for _, id in ipairs(found) do window.ids[#window.ids + 1] = id end
    window.has_all = #found < window.step
    window.step = math.min(window.step * 4, 256)
  end
  return window
end

local function leave(limit, user_name, lane)
  limit.gone[lane .. user_name] = true
  limits.step_out(limit, user_name, lane)
end

-- Find the reason why a user can't start a task of this lane at a limit. Return the user or its organization, and
-- whether it is only too far ahead; nil if the task can start.
local function find_obstacle(user, lane, is_bounded)
  for _, one in ipairs({ user, user.group and user.ring_owner or nil }) do
    if not ring.has_place(one, lane) then return one, false end
    if is_bounded and ring.is_ahead(one, lane) then return one, true end
  end
  return nil
end

-- Added to the scores of urgent entries in `parked:{one}`, so that these entries come first and can be read alone.
local URGENT_FIRST = -1e15
-- Let `ring.note_parked` write the score of a user or organization in `parked` again, when its record is saved.
local function note_change(one)
  records.set(one, 'parked', one.parked)
  one.has_parked = true
end
local function park(limit, user, lane, one)
  leave(limit, user.name, lane)
  local key, place = keys.parked(one.entry), table.concat({ lane, #limit.id, limit.id .. user.name }, ':')
  note_change(one)
  local returning = limits.returning[key]
  if returning and returning[place] then
    returning[place] = nil -- the parked entry stays
  elseif calls.attempt('ZSCORE', key, place) then
    return -- new tasks came while the user was parked
  else
    counters.set('limit_turn', counters.shard.limit_turn + 1)
    writes.zadd(key, counters.shard.limit_turn + (lane == 'urgent' and URGENT_FIRST or 0), place)
  end
  limits.count_parked(one, lane, 1)
end

local function return_to_limit(list, one, place)
  local lane, size, rest = string.match(place, '^(%l+):(%d+):(.*)$')
  local id, name = string.sub(rest, 1, tonumber(size)), string.sub(rest, tonumber(size) + 1)
  local limit = limits.load(id)
  if limit.gone[lane .. name] then return end -- the user left this limit earlier in this call
  limits.returning[keys.parked(one.entry)][place] = true
  limits.count_parked(one, lane, -1)
  slot.touch(keys.limit_tags(id))
  if limit.standing[lane .. name] or calls.attempt('ZSCORE', keys.limit_users(id, lane), name) then return end
  limit.standing[lane .. name] = true
  local tag = tonumber(calls.attempt('ZSCORE', keys.limit_tags(id), name) or nil) or 0
  local at = math.max(limit.vtime, tag)
  if list.is_in_turn then heap.push(users_at(list, limit, lane), at, name) end
  limit.places[lane .. name] = at
  writes.zadd(keys.limit_users(id, lane), at, name)
  records.add(limit, 'users:' .. lane, 1)
  local page = list.limit_pages[lane]
  page[#page + 1] = id
end

-- Let users return to the limits at which they were parked because of this user or organization. If it can start only
-- urgent tasks, only the urgent entries return.
local function unpark(list, one, is_bounded)
  local key, can_start_all = keys.parked(one.entry), ring.has_place(one, 'normal') and not (is_bounded and ring.is_ahead(one, 'normal'))
  local places = calls.attempt('ZRANGEBYSCORE', key, '-inf', can_start_all and '+inf' or '(0', 'LIMIT', 0, MOST_PARKED) or {}
  limits.returning[key] = limits.returning[key] or {}
  for _, place in ipairs(places) do
    if not limits.returning[key][place] then return_to_limit(list, one, place) end
  end
  note_change(one)
end

-- Let parked users that may start tasks now return to their limits: once in a call, and once more when the ring becomes
-- empty.
local function unpark_some(list, is_bounded)
  if counters.shard.parked <= 0 or has_unparked[is_bounded] then return end
  has_unparked[is_bounded] = true
  local found = redis.call('ZRANGE', K.parked, 0, MOST_RETURNING - 1, 'WITHSCORES')
  for i = 1, #found, 2 do
    if is_bounded and tonumber(found[i + 1]) > counters.shard.vtime then return end
    local is_organization = string.byte(found[i]) == string.byte(organizations.PREFIX)
    unpark(list, is_organization and organizations.ring_owner(string.sub(found[i], 2)) or users.load(found[i]), is_bounded)
  end
end

-- Return the user that is next at this limit, or nil if there is none.
local function first_user(list, limit, lane, is_bounded)
  local found = line_up(list, limit, lane)
  while found.size > 0 and looked_at < MOST_USERS and (limit.looked_at or 0) < MOST_OF_LIMIT do
    local name = found.item[1]
    local user = users.load(name)
    local window = window_of(limit, user, lane)
    local one, is_ahead
    if not user.is_damaged and window.ids[window.at] then
      one, is_ahead = find_obstacle(user, lane, is_bounded)
      if not one then return user end
    end
    local _, place = heap.pop(found)
    looked_at, limit.looked_at = looked_at + 1, (limit.looked_at or 0) + 1
    if is_ahead then
      slot.touch(keys.parked(one.entry))
      skipped[#skipped + 1] = { limit = limit, user = user, lane = lane, one = one, place = place, line = found }
    elseif one then
      slot.touch(keys.parked(one.entry))
      park(limit, user, lane, one)
    else
      leave(limit, name, lane)
    end
    found = line_up(list, limit, lane)
  end
  return nil
end

-- Let users start tasks that were skipped because they were too far ahead: now the ring is empty.
local function return_skipped(list)
  for _, one in ipairs(skipped) do
    heap.push(one.line, one.place, one.user.name)
    looked_at, one.limit.looked_at = looked_at - 1, one.limit.looked_at - 1
  end
  skipped = {}
  for _, page in pairs(list.limit_pages) do page.at = 1 end
end

-- Park the users that are too far ahead, after all tasks of the call were taken.
function limit_turns.park_skipped()
  for _, one in ipairs(skipped) do park(one.limit, one.user, one.lane, one.one) end
  skipped = {}
end

-- Return the next turn at the limits in this lane, or nil: a table with `limit`, `user`, and `one`, which is the user
-- or its organization. The limits are served one after the other.
function limit_turns.first(list, lane, is_bounded)
  list.limit_pages = list.limit_pages or { urgent = { at = 1, read = 0 }, normal = { at = 1, read = 0 }, bulk = { at = 1, read = 0 } }
  unpark_some(list, is_bounded)
  if skipped[1] and not is_bounded then return_skipped(list) end
  local page = list.limit_pages[lane]
  while looked_at < MOST_USERS do
    if not page[page.at] then
      if page.read >= PAGE * MOST_PAGES or page.has_all then return nil end
      local found = redis.call('ZRANGE', K['limited:' .. lane], page.read, page.read + PAGE - 1)
      for _, id in ipairs(found) do page[#page + 1] = id end
      page.read, page.has_all = page.read + PAGE, #found < PAGE
      if not page[page.at] then return nil end
    end
    local limit = limits.load(page[page.at])
    local user = limits.free(limit) > 0 and first_user(list, limit, lane, is_bounded)
    if user then return { limit = limit, user = user, lane = lane, one = user.group and user.ring_owner or user } end
    page.at = page.at + 1
  end
  return nil
end

-- Take the user's next task at the limit, and count it at each of its limits. Return nil if the user has no task that
-- can start.
local MOST_TASKS = 8
function limit_turns.take(turn)
  local limit, user, lane = turn.limit, turn.user, turn.lane
  for _ = 1, MOST_TASKS do
    local window = window_of(limit, user, lane)
    local id = window.ids[window.at]
    if not id then return nil end
    local task = task_record.read(id)
    window.at = window.at + 1
    writes.zrem(keys.limit_queue(limit.id, user.name), id)
    if task and task.state == 'queued' and task.user == user.name and task.raw.waits_at == limit.id then
      task.owner = user
      limits.stop_waiting(limit, user, task)
      if task.expires and task.expires <= clock.now then
        next_task.expired[#next_task.expired + 1] = task
      elseif limits.begin(user, task) then
        return task
      end
    end
  end
  return nil
end

-- Return another waiting task with the same name and limits for a batch, or nil if the next task differs. All tasks of
-- a batch count as one task at the limit.
function limit_turns.take_companion(turn, task)
  local limit, user = turn.limit, turn.user
  local window = window_of(limit, user, turn.lane)
  local id = window.ids[window.at]
  local another = id and task_record.read(id)
  if not another or another.state ~= 'queued' or another.raw.waits_at ~= limit.id or another.raw.name ~= task.raw.name
    or another.limits ~= task.limits or another.expires and another.expires <= clock.now then return nil end
  window.at = window.at + 1
  writes.zrem(keys.limit_queue(limit.id, user.name), id)
  limits.stop_waiting(limit, user, another)
  another.owner = user
  return another
end

-- Charge a turn to the user's entries in the other lanes of a limit too, because all lanes count together. `lane` is nil
-- if the turn was at another limit.
local function charge_other_lanes(limit, user, lane, amount)
  for _, other in ipairs(LANES) do
    local entry = other .. user.name
    if other ~= lane and limit['users:' .. other] > 0 and not limit.gone[entry] then
      local place = limit.places[entry] or tonumber(calls.attempt('ZSCORE', keys.limit_users(limit.id, other), user.name) or nil)
      if place then
        limit.places[entry] = place + amount
        writes.zadd(keys.limit_users(limit.id, other), place + amount, user.name)
      end
    end
  end
end

local function set_tag(limit, user, tag)
  limit.tags[user.name] = tag
  writes.zadd(keys.limit_tags(limit.id), tag, user.name)
end

-- Charge a turn to the user's tags at the other shared limits of the task, because the task uses them too. The turn was not
-- in the order of their users, so the virtual time of such a limit moves only if no user waits there in lane normal.
local function charge_other_limits(limit, user, task, amount)
  for _, other in ipairs(limits.of(task)) do
    if other ~= limit and other.has_queue then
      slot.touch(keys.limit_tags(other.id))
      local tag = other.tags[user.name] or tonumber(calls.attempt('ZSCORE', keys.limit_tags(other.id), user.name) or nil) or 0
      tag = math.max(other.vtime, tag)
      if tag > other.vtime and other['users:normal'] == 0 then records.set(other, 'vtime', tag) end
      charge_other_lanes(other, user, nil, amount)
      set_tag(other, user, tag + amount)
    end
  end
end

-- Charge a turn to the user's tag at the limit: the cost of a task, or of a batch. The new tag is the user's next position
-- there. Turns in other lanes move the virtual time only if lane normal has no users, as in the ring.
function limit_turns.charge(list, turn, task, cost)
  local limit, user, lane = turn.limit, turn.user, turn.lane
  local _, place = heap.pop(users_at(list, limit, lane))
  if place > limit.vtime and (lane == 'normal' or limit['users:normal'] == 0) then records.set(limit, 'vtime', place) end
  limit.had_turn = true
  local tag = place + cost / user.weight
  charge_other_lanes(limit, user, lane, cost / user.weight)
  charge_other_limits(limit, user, task, cost / user.weight)
  set_tag(limit, user, tag)
  local window = window_of(limit, user, lane)
  if window.ids[window.at] then
    heap.push(users_at(list, limit, lane), tag, user.name)
    writes.zadd(keys.limit_users(limit.id, lane), tag, user.name)
  else
    leave(limit, user.name, lane)
  end
  local page = list.limit_pages[lane]
  page[#page + 1], page.at = limit.id, page.at + 1
end
