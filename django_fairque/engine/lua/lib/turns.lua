-- The turns of users, in the order of the ring or of a list: whose turn it is, its tasks, and their charges.
--
-- include options counters clock writes records ring organizations recent_usage users charges list_credit heap lines next_task

local turns = {}

local can_be_served = ring.can_be_served

local number_of_turns -- number of users' turns that gave a task; one turn of a batch task gives many
local taken -- also `turns.taken`: the tasks that were taken in this call
local stale -- entries of rings that were found to be wrong
each_call(function()
  taken, number_of_turns, stale = {}, 0, 0
  turns.taken = taken
end)

-- Whether the call has given what it may: a turn of a batch task counts as one, so there is a bound on the tasks too.
local MOST_TAKEN = 300
local function is_full(limit) return number_of_turns >= limit or #taken >= math.max(limit, MOST_TAKEN) end
turns.is_full = is_full

-- The list of users that is served, or all users (`is_in_turn`): made in `take_from` and passed to the functions below. `begins`, by ring
-- owner: where a user begins that has come since its last turn and would begin before it. `line`: users and organizations of the shard's
-- ring. `is_held_back`: by `until_then`. `credit`: of a list, what lib/list_credit.lua keeps. `given`: what its tasks are charged;
-- `weights` of its users; how much is `allowed`.
function turns.new_list(is_in_turn, begin, until_then, batch_sizes, limit)
  return {
    is_in_turn = is_in_turn, until_then = until_then, batch_sizes = batch_sizes, begins = { [counters.shard] = begin },
    line = lines.new(is_in_turn and K.ring, limit), is_held_back = false, credit = not is_in_turn and list_credit.new(), given = 0,
    weights = 0, allowed = math.huge,
  }
end

-- The place of one that was read at this place, after the changes of this call.
local function place_since(one, place)
  return one.came == 0 and (one.tag ~= one.was_tag or place < 0) and ring.place_of(one) or place -- a newcomer had its turn, which may leave its tag
end
turns.place_since = place_since

-- Nobody is left who could be served: then `ready` counts those who could when the call began and leave the ring with it.
local function set_ready_right(organization)
  local leaving = 0
  for _, user in ipairs(users.order) do
    if user.ring_owner == organization and user.was_served then leaving = leaving + 1 end
  end
  if organization.ready ~= leaving then records.set(organization, 'ready', leaving) end
end

-- Whose turn it is in the organization; nil when nobody of those that are to be served can be.
local function next_member(organization, is_in_turn)
  local line = organization.line
  while stale < options.sweep_limit do
    local group = lines.next(line, organization, is_in_turn)
    if not group then
      if line.at > 0 then set_ready_right(organization) end
      return nil
    end
    local name, place = heap.pop(group)
    local user = users.load(name)
    local place_now = place_since(user, place)
    if user.ring_owner ~= organization or not can_be_served(user) then
      if user.ring_owner ~= organization or not user.was_served then
        writes.zrem(organization.ring, user.entry)
        stale = stale + 1
      end
    elseif place_now ~= place then
      lines.push(line, place_now, name)
    else
      return user, place
    end
  end
end

-- A user that has left the ring since its last turn and came back must not start before the users that it competes with now: its
-- tag is raised to `begin`, of a newcomer the virtual time, where it begins.
local function raise_late_start(list, one, place)
  local begin = list.begins[one.ring_owner]
  local is_late = begin and one.tag < begin
  if list.is_in_turn then
    if is_late and place < one.tag or begin and one.came > 0 then
      ring.raise_virtual_time(counters.shard, begin)
      ring.begin(one, ring.arrive(counters.shard))
    end
    one.margin = nil
    return
  end
  if one.came > 0 or is_late and list_credit.has_come(list.credit, one) then
    ring.begin(one, begin or ring.arrive(one.ring_owner))
    if begin then list.begins[one.ring_owner] = begin + ring.arrival_step(begin) end
  end
  list_credit.served(list.credit, one)
end

-- `place` is the user's in its ring, `shard_place` its own or its organization's in the shard's ring.
local function hand_out(list, user, task, place, shard_place, is_companion)
  task.cost, task.lead, task.organization_lead = charges.add(user, list.is_in_turn and place, list.is_in_turn and shard_place, is_companion)
  task.is_listed, task.is_companion = not list.is_in_turn, is_companion
  list.given = list.given + task.cost
  recent_usage.note_wait(user, clock.now - task.ready)
  taken[#taken + 1] = task
end

-- The rest of a batch: the user's waiting tasks of the same name, as many as it may start.
local function take_companions(list, user, task, priority, place, shard_place)
  local size = list.batch_sizes[task.raw.name]
  if not size or size < 2 then return end
  local search, last = { name = task.raw.name, priority = priority, place = 1, left = 2 * size }, #taken + size - 1
  while #taken < last and can_be_served(user) and (user.ring_owner == counters.shard or can_be_served(user.ring_owner)) do
    local another = next_task.take_companion(user, search)
    if not another then return end
    hand_out(list, user, another, place, shard_place, true)
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
  local most, tasks = math.min(math.floor(SHORT_TURN / cost) - 1, limit - number_of_turns), 0
  most = math.min(most, user.cap and user.cap - user.run or most)
  if user.group then most = math.min(most, user.ring_owner.cap and user.ring_owner.cap - user.ring_owner.run or most) end
  while tasks < most do
    local another = user.ready > 0 and next_task.take(user)
    if not another then break end
    tasks = tasks + 1
    another.cost, another.lead, another.organization_lead, another.is_listed, another.is_companion = cost, 0, 0, false, false
    recent_usage.note_wait(user, clock.now - another.ready)
    taken[#taken + 1] = another
  end
  if tasks == 0 then return end
  number_of_turns = number_of_turns + tasks
  charges.add_tasks(user, tasks, cost)
end

-- Load the user or organization with this entry in the shard's ring; nil if it can't be served.
local function load_entry(entry, limit)
  local organization = string.byte(entry) == string.byte(organizations.PREFIX) and organizations.load(string.sub(entry, 2))
  if organization then organization.line = lines.new(organization.ring, math.min(limit, 4)) end
  local one = organization or users.load(entry)
  if can_be_served(one) then return one end
  writes.zrem(K.ring, entry)
  return nil
end

-- After its turn.
local function return_to_line(line, one, place, item)
  local is_left = can_be_served(one)
  ring.count_others(one, one.ring_owner, is_left and one.came == 0)
  if is_left and not one.is_skipped then lines.push(line, place_since(one, place), item) end
end

-- Take one turn of the user or organization that is first in this group: a task, a batch, or some short tasks.
local function take_turn(list, group, limit)
  local line = list.line
  local one, shard_place = heap.pop(group)
  if type(one) == 'string' then
    one = load_entry(one, limit)
    if not one then return end
    local place_now = place_since(one, shard_place)
    if place_now ~= shard_place then return lines.push(line, place_now, one) end -- an earlier list has served it in this call
  end
  raise_late_start(list, one, shard_place)
  local user, organization, place = one, nil, shard_place
  if one.members then
    user, place = next_member(one, list.is_in_turn)
    if user then raise_late_start(list, user, place) end
    organization = one
  end
  if not user then return end
  local is_newcomer = user.came > 0 or one.came > 0
  local task, priority = next_task.take(user)
  if task then
    number_of_turns = number_of_turns + 1
    hand_out(list, user, task, place, shard_place)
    take_companions(list, user, task, priority, place, shard_place)
    if not is_newcomer then take_short(list, user, task, limit) end
  else
    records.set(user, 'tag', user.tag) -- to be saved
  end
  if organization then
    return_to_line(organization.line, user, place, user.name)
    return_to_line(line, organization, shard_place, organization)
  else
    return_to_line(line, user, shard_place, user)
  end
end

-- Users up to `until_then`.
function turns.take(list, limit)
  while not is_full(limit) and list.given <= list.allowed and next_task.skipped < options.sweep_limit do
    local group, place = lines.next(list.line, counters.shard, list.is_in_turn)
    if not group then break end
    if place > list.until_then then
      list.is_held_back = true
      break
    end
    take_turn(list, group, limit)
  end
  list.is_held_back = list.is_held_back or next_task.skipped > 0
end
