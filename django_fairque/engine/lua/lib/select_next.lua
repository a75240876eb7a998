-- Select the next tasks: the user that is next in the ring (in an organization's ring, if the next is an organization), then that
-- user's most urgent task. Everything is read and decided here; nothing is written. Used by lib/fetch.lua.
--
-- The calls: `take_for`, `take_from`, for a list `take_from_list`, `take`, `take_turn` (a user), `take_one` (its task).
--
-- If the queue has several shards, each keeps its own virtual time, which stands still while the shard has no users to
-- serve or its users are far ahead. So the caller, which knows all shards, passes two positions (in this shard's
-- count): `begin`, the virtual time of the queue, is the start position of a user that has come since its last turn and
-- would start before it; `until_then` is the position of the next user on another shard: users beyond it wait until
-- that user was served. The text begins with `+` if only newcomers wait there. A list has no position among shards; the
-- callers count the amount taken on each.

local taken, expired, dropped_ids
local turns -- how many users' turns gave a task; a turn of a batch task takes many
local skipped -- users whose next tasks are expired ones that this call does not bury: other users take their turns
each_call(function() taken, expired, dropped_ids, turns, skipped = {}, {}, {}, 0, 0 end)

local take_for, remove_taken, batch_sizes_of -- all else here is its own: a script has room for 200 names
do

-- By name: the tasks that the worker runs together in one call, and how many of them. The text is the same from call to call, so it
-- is read only when it has changed.
local batch_sizes, batch_text = {}, ''
function batch_sizes_of(text)
  if text ~= batch_text then
    local words = unpack_list(text)
    batch_sizes, batch_text = {}, text
    for i = 1, #words, 2 do batch_sizes[words[i]] = tonumber(words[i + 1]) end
  end
  return batch_sizes
end

-- Whether the call has given what it may: a turn of a batch task counts as one, so there is a bound on the tasks too.
local MOST_TAKEN = 300
local function is_full(limit) return turns >= limit or #taken >= math.max(limit, MOST_TAKEN) end

local take_one, take_another
do

local WEIGHTS = { 0.2, 0.4, 0.6, 0.8, 1.0 }
local LOWEST = { '1e15', '2e15', '3e15', '4e15', '5e15', '6e15' } -- `priority * BAND`: the lowest score of each priority; the last one only ends priority 5

-- A queue that can't be read: its user leaves the ring, until the checker puts it there again.
local function damaged(user)
  user.is_unreadable = true
  return {}
end

local function window_of(user, priority)
  local window = user.windows[priority]
  if not window then
    window = { at = 1, ids = {}, ready = {}, step = 1, out = {}, read = {} } -- `out`: taken before those that stand before it
    user.windows[priority] = window
  end
  return window
end

-- The id at this place of the user's tasks of this priority, as they were when the call began.
local function id_at(user, priority, window, place)
  if place > #window.ids then
    local first = #window.ids
    if priority == 6 then
      for _, id in ipairs(attempt('LRANGE', critical_key(user.name), first, first + window.step - 1) or damaged(user)) do
        window.ids[#window.ids + 1] = id
      end
    else
      local found = attempt('ZRANGEBYSCORE', normal_key(user.name), LOWEST[priority], '(' .. LOWEST[priority + 1],
        'WITHSCORES', 'LIMIT', first, window.step) or damaged(user)
      for i = 1, #found, 2 do
        window.ids[#window.ids + 1] = found[i]
        window.ready[#window.ids] = tonumber(found[i + 1]) - priority * BAND + EPOCH
      end
    end
    window.step = math.min(window.step * 4, 256)
  end
  return window.ids[place]
end

-- The task of this priority that has waited longest and is not taken yet: id and ready time.
local function peek(user, priority)
  local window = window_of(user, priority)
  while window.out[window.at] do window.at = window.at + 1 end
  return id_at(user, priority, window, window.at), window.ready[window.at]
end

local function read_at(window, place)
  local task = window.read[place]
  if task == nil then task = read_task(window.ids[place]) or false end
  window.read[place] = task
  return task
end

-- Critical first; else the highest earned score, weight × (waited + head start) (Kleinrock 1964 with an offset).
-- A lane is looked at only if its oldest task could win: none has waited longer than `since` says.
local function most_urgent(user)
  if user[READY[6]] > 0 then return 6 end
  local best, best_earned
  for priority = 5, 1, -1 do
    local ready = user[READY[priority]]
    if ready > 0 and ready == user.ready then return priority end -- it has no others
    if ready > 0 then
      local bound = WEIGHTS[priority] * (math.max(0, now - (user.since or 0)) + head_start)
      if not best or bound > best_earned then
        local id, ready = peek(user, priority)
        local earned = id and WEIGHTS[priority] * (math.max(0, now - ready) + head_start) or -1
        if not best or earned > best_earned then best, best_earned = priority, earned end
      end
    end
  end
  return best
end

function remove_taken(user)
  for priority, window in pairs(user.windows) do
    local taken = window.at - 1
    if priority == 6 and taken > 0 then
      attempt('LPOP', critical_key(user.name), taken)
    else
      local key = normal_key(user.name)
      for i = 1, taken do zrem(key, window.ids[i]) end
      for i in pairs(window.out) do
        if i > taken then zrem(key, window.ids[i]) end
      end
    end
  end
  user.windows = {}
end

local UNREADABLE = 'its payload was overwritten or removed on the server, and with it the task\'s name and its options'
local function bury_unreadable(task)
  local created = task.raw.created or now_text
  to_dead(task.owner, task, 'poisoned', UNREADABLE, '', 'user', task.user, 'created', created, 'priority', exact(task.priority))
  alert('died', task, UNREADABLE)
end

-- A queued task that `read_task` can't read: its head is gone, because something else has written or removed its payload. Known of it are
-- its place in its user's queue, and the changes in its record. Nil if nothing is left of it, or its record is of another type.
local function unreadable_task(id, user, priority)
  local key = task_key(id)
  local flat, raw = attempt('HGETALL', key), {}
  if not flat or #flat == 0 and redis.call('EXISTS', payload_key(id)) == 0 then return nil end
  for i = 1, #flat, 2 do raw[flat[i]] = flat[i + 1] end
  if raw.state and raw.state ~= 'queued' or raw.user and raw.user ~= user.name then return nil end
  return {
    id = id, key = key, raw = raw, state = 'queued', user = user.name, owner = user, priority = priority,
    ready = now, bury = bury_unreadable, waited = raw.waited, size = raw.size and number(raw.size), died = raw.died and number(raw.died) or 0,
  }
end

-- Take one task of this user. Returns nil if the user has none after all (then its counters are corrected), or is
-- skipped. One user may use up a quarter of the tasks that a call may bury, so that many users with only expired tasks
-- don't delay the others.
function take_one(user)
  local buried = 0
  while true do
    local priority = most_urgent(user)
    if not priority then return nil end
    local id = peek(user, priority)
    if user.is_unreadable then
      user.is_skipped = true
      set(user, 'tag', user.tag) -- to be saved
      return nil
    elseif not id then
      add_ready(user, priority, -user[READY[priority]])
    else
      local window = user.windows[priority]
      local task = read_at(window, window.at)
      local is_queued = task and task.state == 'queued' and task.user == user.name
      local is_live = is_queued and not (task.expires and task.expires <= now)
      if not is_live and (buried >= sweep_limit / 4 or #expired + #dropped_ids >= sweep_limit) then
        user.is_skipped, skipped = true, skipped + 1
        return nil
      end
      window.at, buried = window.at + 1, buried + 1
      add_ready(user, priority, -1)
      if is_queued then task.owner = user end
      if is_live then return task, priority end
      local unreadable = not task and unreadable_task(id, user, priority)
      if is_queued or unreadable then
        expired[#expired + 1] = unreadable or task
      else
        dropped_ids[#dropped_ids + 1] = id -- an entry without its task: it is removed
      end
    end
  end
end

-- Another task of this name for the batch whose search this is, or nil. Critical tasks keep their order: the search ends at the
-- first of another name. With other priorities it goes past them, and ends after twice as many tasks as the batch has room for.
function take_another(user, search)
  local window = window_of(user, search.priority)
  window.step = math.max(window.step, math.min(256, search.left))
  while search.left > 0 do
    local place = math.max(search.place, window.at)
    search.place, search.left = place + 1, search.left - 1
    if not id_at(user, search.priority, window, place) then return nil end
    local task = not window.out[place] and read_at(window, place)
    local is_next = task and task.raw.name == search.name and task.state == 'queued' and task.user == user.name
      and not (task.expires and task.expires <= now)
    if is_next then
      if place == window.at then window.at = place + 1 else window.out[place] = true end
      add_ready(user, search.priority, -1)
      task.owner = user
      return task
    elseif search.priority == 6 then
      return nil
    end
  end
end

end

-- The users of a ring who may be served: newcomers, and the others. A user is only its entry in the ring until its turn comes:
-- most calls serve few of them.
local lines = {} -- in one table: a script has room for 200 names
do

-- A binary heap by position.
local function new_heap() return { size = 0, position = {}, item = {} } end
local function heap_push(heap, position, item)
  local positions, items, i = heap.position, heap.item, heap.size + 1
  heap.size = i
  while i > 1 do
    local parent = math.floor(i / 2)
    if positions[parent] <= position then break end
    positions[i], items[i] = positions[parent], items[parent]
    i = parent
  end
  positions[i], items[i] = position, item
end
function lines.pop(heap)
  local positions, items, size = heap.position, heap.item, heap.size - 1
  local item, at, position, last = items[1], positions[1], positions[size + 1], items[size + 1]
  heap.size = size
  local i = 1
  while true do
    local child = 2 * i
    if child > size then break end
    if child < size and positions[child + 1] < positions[child] then child = child + 1 end
    if position <= positions[child] then break end
    positions[i], items[i] = positions[child], items[child]
    i = child
  end
  positions[i], items[i] = position, last
  return item, at
end

-- Users are read in pages of `step`. A page in the ring's order has newcomers first, and most often the first of the others. `at`: how
-- many were read in this order, `others_read`: how many of the others, `last`: the tag of the last one. Without a key nothing is read.
function lines.new(key, step)
  return {
    key = key, step = step, newcomers = new_heap(), others = new_heap(), at = 0, others_read = 0, last = -math.huge,
    has_all_newcomers = not key, has_all = not key,
  }
end

function lines.push(line, position, item) heap_push(position < 0 and line.newcomers or line.others, position, item) end

local function read_page(line, of_others)
  local call, found, others = line.key == K.ring and redis.call or attempt, nil, 0
  if of_others then
    found, others = call('ZRANGEBYSCORE', line.key, 0, '+inf', 'WITHSCORES', 'LIMIT', line.others_read, line.step) or {}, line.others_read
  else
    found = call('ZRANGE', line.key, line.at, line.at + line.step - 1, 'WITHSCORES') or {}
    line.at = line.at + line.step
  end
  for i = 1, #found, 2 do
    local position = tonumber(found[i + 1])
    if position >= 0 then others = others + 1 end
    if position < 0 then
      heap_push(line.newcomers, position, found[i])
    elseif others > line.others_read then
      line.others_read, line.last = others, position
      heap_push(line.others, position, found[i])
    end
  end
  local is_end = #found < 2 * line.step
  line.has_all = line.has_all or is_end
  line.has_all_newcomers = line.has_all_newcomers or others > 0 or is_end
end

-- The group of which the first is next, and where that one stands: the tag, or of a newcomer the tag up to which others go first.
-- Without `is_in_turn` (a list) nobody is overdue.
function lines.next(line, ring_owner, is_in_turn)
  local newcomers, others, turn = line.newcomers, line.others, nil
  if newcomers.size == 0 and not line.has_all_newcomers then read_page(line) end
  if newcomers.size > 0 then
    turn = ring.newcomers_turn(ring_owner)
    if not is_in_turn or turn <= ring_owner.vtime then return newcomers, turn end
  end
  while not line.has_all and (others.size == 0 or others.position[1] > line.last) do read_page(line, true) end
  local first = others.size > 0 and others.position[1]
  if turn and not (first and first < turn) then return newcomers, turn end
  if first then return others, first end
end

end

-- The list of users that is served, or all users (`is_in_turn`): made in `take_from` and passed to the functions below. `begins`, by ring
-- owner: where a user begins that has come since its last turn and would begin before it. `line`: users and organizations of the shard's
-- ring. `is_held_back`: by `until_then`. `credit`: of a list, what lib/list_credit.lua keeps. `given`: what its tasks are charged;
-- `weights` of its users; how much is `allowed`.
local function new_list(is_in_turn, begin, until_then, batch_sizes, limit)
  return {
    is_in_turn = is_in_turn, until_then = until_then, batch_sizes = batch_sizes, begins = { [stat] = begin },
    line = lines.new(is_in_turn and K.ring, limit), is_held_back = false, credit = not is_in_turn and list_credit.new(), given = 0,
    weights = 0, allowed = math.huge,
  }
end

-- Where one stands who was read at this position, after what this call has changed.
local function place_since(one, position)
  return one.came == 0 and one.tag ~= one.was_tag and ring.place_of(one) or position
end

local stale -- entries of rings that were found to be wrong
each_call(function() stale = 0 end)

local next_member
do

-- Nobody is left who could be served: then `ready` counts those who could when the call began and leave the ring with it.
local function set_ready_right(organization)
  local leaving = 0
  for _, user in ipairs(user_order) do
    if user.ring_owner == organization and user.was_served then leaving = leaving + 1 end
  end
  if organization.ready ~= leaving then set(organization, 'ready', leaving) end
end

-- Whose turn it is in the organization; nil when nobody of those that are to be served can be.
function next_member(organization, is_in_turn)
  local line = organization.line
  while stale < sweep_limit do
    local group = lines.next(line, organization, is_in_turn)
    if not group then
      if line.at > 0 then set_ready_right(organization) end
      return nil
    end
    local name, position = lines.pop(group)
    local user = load_user(name)
    local place = place_since(user, position)
    if user.ring_owner ~= organization or not can_be_served(user) then
      if user.ring_owner ~= organization or not user.was_served then
        zrem(organization.ring, user.entry)
        stale = stale + 1
      end
    elseif place ~= position then
      lines.push(line, place, name)
    else
      return user, position
    end
  end
end

end

local take
do

-- A user that has left the ring since its last turn and came back must not start before the users that it competes with now: its
-- tag is raised to `begin`, of a newcomer the virtual time, where it begins.
local function raise_late_start(list, one, position)
  local begin = list.begins[one.ring_owner]
  local is_late = begin and one.tag < begin
  if list.is_in_turn then
    if is_late and position < one.tag or begin and one.came > 0 then
      move_up(stat, begin)
      begin_at(one, arrive(stat))
    end
    one.margin = nil
    return
  end
  if one.came > 0 or is_late and list_credit.has_come(list.credit, one) then
    begin_at(one, begin or arrive(one.ring_owner))
    if begin then list.begins[one.ring_owner] = begin + step_at(begin) end
  end
  list_credit.served(list.credit, one)
end

-- `place` is where the user stood, `position` where it or its organization stood in the shard's ring.
local function hand_out(list, user, task, place, position, is_companion)
  task.cost, task.lead, task.organization_lead = charge(user, list.is_in_turn and place, list.is_in_turn and position, is_companion)
  task.is_listed, task.is_companion = not list.is_in_turn, is_companion
  list.given = list.given + task.cost
  note_wait(user, now - task.ready)
  taken[#taken + 1] = task
end

-- The rest of a batch: the user's waiting tasks of the same name, as many as it may start.
local function take_companions(list, user, task, priority, place, position)
  local size = list.batch_sizes[task.raw.name]
  if not size or size < 2 then return end
  local search, last = { name = task.raw.name, priority = priority, place = 1, left = 2 * size }, #taken + size - 1
  while #taken < last and can_be_served(user) and (user.ring_owner == stat or can_be_served(user.ring_owner)) do
    local another = take_another(user, search)
    if not another then return end
    hand_out(list, user, another, place, position, true)
  end
end

-- The rest of the turn of a user whose tasks are short: as many tasks as are expected to take `SHORT_TURN` together. A call with many
-- short tasks then reads and writes few users: that is half of its time with a hundred users who have work. Other users wait up to
-- one short turn of each user longer, which is less than a task of 1 ms of each would take.
--
-- Not for a user without an ended task, a newcomer (one task of it is counted in the lead), lists, users with a rate,
-- or workers with batch tasks.
local SHORT_TURN = 1e3
local function take_short(list, user, task, limit)
  local cost = task.cost
  if not user.mean or cost > SHORT_TURN / 2 or user.gap or not list.is_in_turn or next(list.batch_sizes) then return end
  local most, tasks = math.min(math.floor(SHORT_TURN / cost) - 1, limit - turns), 0
  most = math.min(most, user.cap and user.cap - user.run or most)
  if user.group then most = math.min(most, user.ring_owner.cap and user.ring_owner.cap - user.ring_owner.run or most) end
  while tasks < most do
    local another = user.ready > 0 and take_one(user)
    if not another then break end
    tasks = tasks + 1
    another.cost, another.lead, another.organization_lead, another.is_listed, another.is_companion = cost, 0, 0, false, false
    note_wait(user, now - another.ready)
    taken[#taken + 1] = another
  end
  if tasks == 0 then return end
  turns = turns + tasks
  charge_more(user, tasks, cost)
end

-- Load the user or organization with this entry in the shard's ring; nil if it can't be served.
local function load_entry(entry, limit)
  local organization = string.byte(entry) == string.byte(AS_ORGANIZATION) and load_organization(string.sub(entry, 2))
  if organization then organization.line = lines.new(organization.ring, math.min(limit, 4)) end
  local one = organization or load_user(entry)
  if can_be_served(one) then return one end
  zrem(K.ring, entry)
  return nil
end

-- After its turn.
local function stand_again(line, one, position, item)
  local is_left = can_be_served(one)
  ring.count_others(one, one.ring_owner, is_left and one.came == 0)
  if is_left and not one.is_skipped then lines.push(line, place_since(one, position), item) end
end

-- Take one turn of the user or organization that is first in this group: a task, a batch, or some short tasks.
local function take_turn(list, group, limit)
  local line = list.line
  local one, position = lines.pop(group)
  if type(one) == 'string' then
    one = load_entry(one, limit)
    if not one then return end
    local place_now = place_since(one, position)
    if place_now ~= position then return lines.push(line, place_now, one) end -- an earlier list has served it in this call
  end
  raise_late_start(list, one, position)
  local user, organization, place = one, nil, position
  if one.members then
    user, place = next_member(one, list.is_in_turn)
    if user then raise_late_start(list, user, place) end
    organization = one
  end
  if not user then return end
  local is_newcomer = user.came > 0 or one.came > 0
  local task, priority = take_one(user)
  if task then
    turns = turns + 1
    hand_out(list, user, task, place, position)
    take_companions(list, user, task, priority, place, position)
    if not is_newcomer then take_short(list, user, task, limit) end
  else
    set(user, 'tag', user.tag) -- to be saved
  end
  if organization then
    stand_again(organization.line, user, place, user.name)
    stand_again(line, organization, position, organization)
  else
    stand_again(line, user, position, user)
  end
end

-- Users up to `until_then`.
function take(list, limit)
  while not is_full(limit) and list.given <= list.allowed and skipped < sweep_limit do
    local group, position = lines.next(list.line, stat, list.is_in_turn)
    if not group then break end
    if position > list.until_then then
      list.is_held_back = true
      break
    end
    take_turn(list, group, limit)
  end
  list.is_held_back = list.is_held_back or skipped > 0
end

end

local take_from_list
do

local function line_up(list, one, position)
  if not can_be_served(one) then return end
  lines.push(list.line, place_since(one, position), one)
  list_credit.note(list.credit, one, position)
  list.weights = list.weights + one.weight
end

-- Members of organizations that are in a list: each behind its organization, which stands where it always does.
local function line_up_members(list, names)
  local members_of, standing, entries = {}, {}, {}
  for _, name in ipairs(names) do
    local user = load_user(name)
    local organization = user.ring_owner
    if user.group and can_be_served(user) and can_be_served(organization) then
      if not members_of[organization] then
        members_of[organization] = {}
        standing[#standing + 1], entries[#entries + 1] = organization, organization.entry
      end
      members_of[organization][#members_of[organization] + 1] = name
    end
  end
  if #standing == 0 then return end
  local positions = redis.call('ZMSCORE', K.ring, unpack(entries))
  for i, organization in ipairs(standing) do
    local is_new = not organization.line -- or other parts of the list have stood up already
    if is_new then
      organization.line = lines.new(nil, 1)
    end
    for n, at in ipairs(attempt('ZMSCORE', organization.ring, unpack(members_of[organization])) or {}) do
      if at then
        local user = load_user(members_of[organization][n])
        lines.push(organization.line, tonumber(at), members_of[organization][n])
        list_credit.note(list.credit, user, tonumber(at))
      end
    end
    if is_new and positions[i] then line_up(list, organization, tonumber(positions[i])) end
  end
end

-- For a look the first of them will do: each is read.
local function line_up_list(list, at, size, is_look)
  for first = at, at + size - 1, CHUNK do
    local last = math.min(first + CHUNK - 1, at + size - 1)
    local positions = redis.call('ZMSCORE', K.ring, unpack(ARGV, first, last))
    for i, position in ipairs(positions) do
      if position then line_up(list, load_user(ARGV[first + i - 1]), tonumber(position)) end
      if is_look and lines.next(list.line, stat) then return end
    end
    if stat.groups > 0 then
      local members = {}
      for i, is_member in ipairs(redis.call('ZMSCORE', K.grouped, unpack(ARGV, first, last))) do
        if is_member then members[#members + 1] = ARGV[first + i - 1] end
      end
      line_up_members(list, members)
    end
  end
end

function take_from_list(list, limit, at, size, share)
  line_up_list(list, at, size, limit == 0)
  if limit == 0 then return end
  list.allowed = share * list.weights
  for _, ring_owner in ipairs(list.credit.ring_owners) do list.begins[ring_owner] = list_credit.first(list.credit, ring_owner) end
  take(list, limit)
  list_credit.take_off(list.credit)
end

end

-- A list of users in ARGV: its length (or '*') and then its members; the two places, or '' (of a list instead of the second how much
-- each of them may get before the next of the other shards is behind). With a limit of 0 it is only seen who is left. Returns of a
-- list: whether somebody `is_left` who can be served, and what each of them `got`; of all users: how many tasks they `got`, and
-- `is_held_back`; nil if nobody was looked at.
local function take_from(limit, at, begin_text, until_text, batch_sizes)
  -- Half a second further, or 30 tasks: calls would be twice as many, and fetch a task or two of each user.
  local only_newcomers, until_then = string.match(until_text, '^(%+?)(.*)$')
  local further = until_then ~= '' and tonumber(until_then) + (fair_by_tasks and 30 * TASK_COST or 5 * FIRST_COST) or math.huge
  local begin, size, before = tonumber(begin_text), tonumber(ARGV[at]) or 0, #taken
  if ARGV[at] == '*' then
    local list = new_list(true, begin, further, batch_sizes, limit)
    ring.others_elsewhere = until_then ~= '' and only_newcomers == ''
    take(list, limit)
    return { is_held_back = list.is_held_back, got = #taken - before }
  end
  if size == 0 or (limit > 0 and is_full(limit)) then return nil end
  local list = new_list(false, begin, math.huge, batch_sizes)
  take_from_list(list, limit, at + 1, size, further)
  for _, organization in ipairs(organization_order) do organization.line = nil end
  return { is_left = lines.next(list.line, stat) ~= nil or skipped > 0, got = list.weights > 0 and list.given / list.weights or 0 }
end

-- Two lists, one after the other; the places are those of the last that there is: it is served while other shards have nobody of
-- the first. Returns what `take_from` returned of each.
function take_for(limit, at, begin_text, until_text, batch_sizes)
  local second = at + 1 + (tonumber(ARGV[at]) or 0)
  if ARGV[at] == '*' or ARGV[second] == '0' then return { take_from(limit, at, begin_text, until_text, batch_sizes) } end
  local served_lists = { take_from(limit, at, '', '', batch_sizes) }
  served_lists[#served_lists + 1] = take_from(limit, second, begin_text, until_text, batch_sizes)
  return served_lists
end

end
