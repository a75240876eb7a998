-- The turns of users, in the order of the ring or of a list: choose the next user, take its tasks, and charge them.
--
-- include options counters clock writes records ring organizations recent_usage users queues lanes charges list_credit limits limit_turns guarantees heap lines next_task

local turns = {}

local can_be_served, can_start = ring.can_be_served, ring.can_start

local number_of_turns -- the number of users' turns that gave a task; one turn of a batch task gives many tasks
local taken -- also `turns.taken`: the tasks that were taken in this call
local stale -- the number of entries in rings that were found to be wrong
local left_below_urgent, left_bulk -- the numbers of turns that all lanes below urgent may still get together, and lane bulk alone; nil for no limit
each_call(function()
  taken, number_of_turns, stale = {}, 0, 0
  turns.taken, left_below_urgent, left_bulk = taken, nil, nil
end)

-- Set how many turns the lanes below urgent may get together, and how many of these lane bulk may get; the other slots
-- of the worker are reserved.
function turns.limit_lanes(below_urgent, bulk) left_below_urgent, left_bulk = below_urgent, bulk end

local function is_open(lane)
  if not left_below_urgent or lane == 'urgent' then return true end
  return left_below_urgent > 0 and (lane == 'normal' or left_bulk > 0)
end

-- Return whether tasks may be left because the limits of lanes excluded them.
function turns.has_closed_lane() return not is_open('bulk') end

local function count_turns(lane, tasks)
  number_of_turns = number_of_turns + tasks
  if not left_below_urgent or lane == 'urgent' then return end
  left_below_urgent = left_below_urgent - tasks
  if lane == 'bulk' then left_bulk = left_bulk - tasks end
end

-- Return whether the call has reached its maximum number of turns. A turn of a batch task counts as one, so the number
-- of tasks has a bound too.
local MOST_TAKEN = 300
local function is_full(limit) return number_of_turns >= limit or #taken >= math.max(limit, MOST_TAKEN) end
turns.is_full = is_full

-- Return the state of a list of users that is served, or of all users (`is_in_turn`). The state is made in `take_from`
-- and passed to the functions below. `begins`, by ring owner: the lowest tag for a user that has entered the ring since
-- its last turn. `normal`, `urgent` and `bulk`: the users and organizations in each lane of the shard. `is_held_back`:
-- whether `until_then` ended the call. `credit`: for a list, the state of lib/list_credit.lua. `given`: the cost
-- charged for its tasks; `allowed`: the largest `given`; `weights`: the sum of the weights of its users.
function turns.new_list(is_in_turn, begin, until_then, batch_sizes, limit)
  return {
    is_in_turn = is_in_turn, until_then = until_then, batch_sizes = batch_sizes, begins = { [counters.shard] = begin },
    normal = lines.new(is_in_turn and K.ring, limit), urgent = false, bulk = false, limit = limit, is_held_back = false, credit = not is_in_turn and list_credit.new(), given = 0,
    weights = 0, allowed = math.huge,
  }
end

-- Return the position of an entry after the changes of this call. `place` is the position that was read.
local function place_since(one, place, lane)
  if lane ~= 'normal' then return ring.place_in(one, lane) end
  return one.came == 0 and (one.tag ~= one.was_tag or place < 0) and ring.place_of(one) or place -- after a newcomer's turn the tag may be unchanged
end
turns.place_since = place_since

-- Return the users and organizations in a lane of the shard.
local function line_of(list, lane)
  local line = list[lane]
  if not line then
    line = lines.new(list.is_in_turn and ring.lane_key(counters.shard, lane), list.limit)
    list[lane] = line
  end
  return line
end
turns.line_of = line_of

-- Return the members of an organization in this lane. For a list of users they were added before.
local function members_of(organization, lane, is_in_turn)
  local line = organization.lines[lane]
  if not line then
    line = lines.new(is_in_turn and ring.lane_key(organization, lane), organization.step)
    organization.lines[lane] = line
  end
  return line
end
turns.members_of = members_of

-- Correct the organization's number of members that can be served, because none was found. Members that this call has
-- removed from the lane still count until they are saved.
local READY, WAS = { urgent = 'ready:7', normal = 'ready', bulk = 'ready:0' }, { urgent = 'was_urgent', normal = 'was_served', bulk = 'was_bulk' }
local function set_ready_right(organization, lane)
  local leaving = 0
  for _, user in ipairs(users.order) do
    if user.ring_owner == organization and user[WAS[lane]] then leaving = leaving + 1 end
  end
  if organization[READY[lane]] ~= leaving then records.set(organization, READY[lane], leaving) end
end

-- Return the next member of the organization in this lane, and its position; nil if no member can be served.
local function next_member(organization, lane, is_in_turn)
  local line = members_of(organization, lane, is_in_turn)
  while stale < options.sweep_limit do
    local group = lines.next(line, organization, is_in_turn)
    if not group then
      if line.at > 0 then set_ready_right(organization, lane) end
      return nil
    end
    local name, place = heap.pop(group)
    local user = users.load(name)
    local place_now = place_since(user, place, lane)
    if user.ring_owner ~= organization or not can_start(user, lane) then
      if user.ring_owner ~= organization or not user[WAS[lane]] then
        writes.zrem(ring.lane_key(organization, lane), user.entry)
        stale = stale + 1
      end
    elseif place_now ~= place then
      lines.push(line, place_now, name)
    else
      return user, place
    end
  end
end

-- A user that left the ring since its last turn and returned must not be served before the users with which it competes
-- now, so its tag is raised to `begin`. A newcomer also gets `begin`, which is the virtual time.
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

-- Charge a task, and add it to the taken tasks. `place` is the user's position in its ring; `shard_place` is the
-- position of the user, or of its organization, in the shard's ring. `ring_lane` is that of `charges.add`.
local function hand_out(list, user, task, place, shard_place, is_companion, organization_lane, ring_lane)
  local lane = organization_lane == 'normal' and 'normal' or queues.lane_of(task.priority)
  task.cost, task.lead, task.organization_lead = charges.add(user, list.is_in_turn and place, list.is_in_turn and shard_place, is_companion,
    lane, organization_lane, ring_lane)
  task.is_listed, task.is_companion = not list.is_in_turn, is_companion
  list.given = list.given + task.cost
  recent_usage.note_wait(user, clock.now - task.ready)
  taken[#taken + 1] = task
end

-- Take the rest of a batch: the user's waiting tasks of the same name, as many as it may start.
local function take_companions(list, user, task, priority, place, shard_place, organization_lane)
  local size, lane = list.batch_sizes[task.raw.name], queues.lane_of(priority)
  if not size or size < 2 then return end
  local search, last = { name = task.raw.name, limits = task.limits, priority = priority, place = 1, left = 2 * size }, #taken + size - 1
  while #taken < last and can_start(user, lane) and (user.ring_owner == counters.shard or can_start(user.ring_owner, organization_lane == 'guaranteed' and lane or organization_lane)) do
    local another = next_task.take_companion(user, search)
    if not another then return end
    hand_out(list, user, another, place, shard_place, true, organization_lane)
  end
end

-- Take the rest of the turn of a user whose tasks are short: as many tasks as are expected to take `SHORT_TURN` (1 ms)
-- together. A call with many short tasks then reads and writes fewer users, which saves half of its time with a hundred
-- users that have work. Other users wait up to one short turn of each user longer, which is less than a task of 1 ms of
-- each user would take.
--
-- The tasks of a user without an ended task are expected to take the shard's mean run time. Such tasks may take longer, so the
-- turn of such a user has at most two tasks.
--
-- A turn has one task in these cases: the user is a newcomer (the lead counts one task), is served as part of a list, or has
-- a rate; the worker has batch tasks; the lane is not the normal one.
local SHORT_TURN, UNKNOWN = 1e3, 2
local function take_short(list, user, task, limit)
  local cost = task.cost
  if cost > SHORT_TURN / 2 or user.gap or not list.is_in_turn or next(list.batch_sizes) then return end
  local most, tasks = math.min(math.floor(SHORT_TURN / cost) - 1, limit - number_of_turns, left_below_urgent or limit), 0
  most = math.min(most, user.cap and user.cap - user.run or most, user.mean and most or UNKNOWN - 1)
  if user.group then most = math.min(most, user.ring_owner.cap and user.ring_owner.cap - user.ring_owner.run or most) end
  while tasks < most do
    local another = user.ready > 0 and next_task.take(user, 'normal')
    if not another then break end
    tasks = tasks + 1
    another.cost, another.lead, another.organization_lead, another.is_listed, another.is_companion = cost, 0, 0, false, false
    recent_usage.note_wait(user, clock.now - another.ready)
    taken[#taken + 1] = another
  end
  if tasks == 0 then return end
  count_turns('normal', tasks)
  charges.add_tasks(user, tasks, cost)
end

local function load_organization(list, name)
  local organization = organizations.load(name)
  if not organization.lines then organization.lines, organization.step = {}, math.min(list.limit or 1, 4) end
  return organization
end

-- Load the user or organization with this entry in a lane of the shard; nil if it can't be served there.
local function load_entry(list, entry, lane)
  local is_organization = string.byte(entry) == string.byte(organizations.PREFIX)
  local one = is_organization and load_organization(list, string.sub(entry, 2)) or users.load(entry)
  if can_start(one, lane) then return one end
  if not one[WAS[lane]] then writes.zrem(ring.lane_key(counters.shard, lane), entry) end
  return nil
end

-- Put an entry back into its lane after its turn.
local function return_to_line(line, one, place, item, lane)
  local served = can_be_served(one)
  ring.count_others(one, one.ring_owner, served and one.came == 0)
  if lane ~= 'normal' then served = can_start(one, lane) end
  if served and not one.is_skipped then lines.push(line, place_since(one, place, lane), item) end
end

-- Return the user or organization that is first in a lane of the shard, the group in which it is first, and its
-- position; nil if there is none.
local function first_in(list, lane)
  local line = line_of(list, lane)
  while true do
    local group, place = lines.next(line, counters.shard, list.is_in_turn)
    if not group then return nil end
    local one, place_before = group.item[1], group.place[1]
    if type(one) == 'string' then
      if organizations.is_unread(one) then return { ring_owner = counters.shard, urgent_tag = place_before }, group, place end -- its record is read when it has its turn
      one = load_entry(list, one, lane)
    end
    if one and can_start(one, lane) and not one.is_skipped then
      local place_now = place_since(one, place_before, lane)
      group.item[1] = one
      if place_now == place_before then return one, group, place end
      heap.pop(group)
      lines.push(line, place_now, one)
    else
      heap.pop(group)
    end
  end
end

-- Return the first entry of a lane: at a limit (with its turn there), or in the lane; nil if there is none.
-- `is_bounded` is that of `limit_turns.first`.
local function find_first(list, lane, is_bounded)
  local turn = limits.are_waiting() and limit_turns.first(list, lane, is_bounded)
  if turn then return { lane = lane, one = turn.one, turn = turn } end
  local one, group, place = first_in(list, lane)
  return one and { lane = lane, one = one, group = group, place = place }
end

-- Return the organization that is served before the ring because of its guaranteed share, and the lane of its turn; nil
-- if none is due.
local function find_guaranteed(list)
  for _, name in ipairs(guarantees.list_due()) do
    local organization = load_organization(list, name)
    local is_due = not organization.has_no_turn and guarantees.is_due(organization)
    for _, lane in ipairs(is_due and { 'normal', 'urgent', 'bulk' } or {}) do
      if is_open(lane) and can_start(organization, lane) then return { lane = lane, one = organization, is_guaranteed = true } end
    end
  end
  return nil
end

-- Return whether lane normal, or lane bulk, must be read to decide which lane is next. The lane need not be read if a
-- higher lane is first (`leads`), no task waits at a limit, and the lane can't be due.
local function is_needed(list, lane, leads)
  return is_open(lane) and (not leads or not list.is_in_turn or limits.are_waiting() or lanes.may_be_due(lane))
end

-- Read the first entries of the lanes on which the first turn depends.
local function read_lanes(list)
  local shard, found = counters.shard, {}
  list.has_read_lanes = true
  if not list.is_in_turn then return end
  local urgent = shard['depth:7'] > 0 and lines.read_first(line_of(list, 'urgent'), found)
  local leads = urgent and urgent <= shard.vtime + ring.AHEAD
  local normal = is_needed(list, 'normal', leads) and lines.read_first(list.normal, found)
  if shard['depth:0'] > 0 and is_needed(list, 'bulk', leads or normal) then lines.read_first(line_of(list, 'bulk'), found) end
  users.preload(found)
end

-- Return the first entry of the lane that is next in the shard.
local function next_lane(list)
  local shard, urgent, normal, bulk = counters.shard, nil, nil, nil
  if not list.has_read_lanes then read_lanes(list) end
  local is_bounded = list.is_in_turn and limits.are_waiting() and first_in(list, 'normal') ~= nil
  if shard['depth:7'] > 0 then urgent = find_first(list, 'urgent', is_bounded) end
  local leads = urgent and lanes.may_lead(urgent.one)
  if is_needed(list, 'normal', leads) then normal = find_first(list, 'normal', is_bounded) end
  if not list.is_in_turn and (urgent or normal) then return urgent or normal end
  if shard['depth:0'] > 0 and is_needed(list, 'bulk', leads or normal) then bulk = find_first(list, 'bulk', is_bounded) end
  if bulk and (normal or urgent) and lanes.is_due('bulk', bulk.one) then return bulk end
  local is_urgent = leads or urgent and not (normal or bulk)
  if is_urgent and not (normal and lanes.is_due('normal', normal.one)) then return urgent end
  return list.is_in_turn and guarantees.are_used() and find_guaranteed(list) or normal or bulk
end

-- Return the lane of the next turn inside an organization that has an urgent turn.
local function lane_inside(organization, is_in_turn)
  local group = lines.next(members_of(organization, 'urgent', is_in_turn), organization, is_in_turn)
  local lane = is_open('normal') and organization.ready > 0 and 'normal' or is_open('bulk') and organization['ready:0'] > 0 and 'bulk'
  local urgent = group and users.load(group.item[1])
  return lane and not (urgent and lanes.may_lead(urgent)) and lane or 'urgent'
end

-- Take one turn of the user or organization that is first in this group of a lane: a task, a batch, or some short tasks.
local function take_turn(list, lane, group, limit)
  local line = list[lane]
  local one, shard_place = heap.pop(group)
  if type(one) == 'string' then
    one = load_entry(list, one, lane)
    if not one then return end
    local place_now = place_since(one, shard_place, lane)
    if place_now ~= shard_place then return lines.push(line, place_now, one) end -- the list before this one has served this entry in this call
  elseif not can_start(one, lane) then
    return -- a turn in another lane, or at a limit, used the last task that it may start
  end
  local begin = list.is_in_turn and list.begins[counters.shard]
  if lane == 'normal' then
    raise_late_start(list, one, shard_place)
  elseif begin and counters.shard.others == 0 then
    ring.raise_virtual_time(counters.shard, begin) -- turns of other shards have moved the virtual time of the queue
  end
  local user, organization, place, member_lane = one, nil, shard_place, lane
  if one.members then
    if lane == 'urgent' then member_lane = lane_inside(one, list.is_in_turn) end
    user, place = next_member(one, member_lane, list.is_in_turn)
    if user and member_lane == 'normal' then raise_late_start(list, user, place) end
    organization = one
  end
  if not user then return end
  local is_newcomer = user.came > 0 or one.came > 0
  local task, priority = next_task.take(user, member_lane)
  if task then
    count_turns(member_lane, 1)
    hand_out(list, user, task, place, shard_place, nil, lane)
    take_companions(list, user, task, priority, place, shard_place, lane)
    if lane == 'normal' and not is_newcomer then take_short(list, user, task, limit) end
  else
    records.set(user, 'tag', user.tag) -- marks the user as changed, so that it is saved
  end
  if organization then
    return_to_line(organization.lines[member_lane], user, place, user.name, member_lane)
    return_to_line(line, organization, shard_place, organization, lane)
  else
    return_to_line(line, user, shard_place, user, lane)
  end
end

-- Take one turn of a user at a limit: a task, or a batch.
local function take_limit_turn(list, turn)
  local user, lane = turn.user, turn.lane
  local task = limit_turns.take(turn)
  if not task then return end
  for _, one in ipairs({ user, user.group and user.ring_owner or nil }) do -- unused worker time of an entry gives it no advantage
    if one.tag < one.ring_owner.vtime and not can_be_served(one) then ring.begin(one, ring.arrive(one.ring_owner)) end
  end
  local cost = 0
  local function start(started, is_companion)
    hand_out(list, user, started, user.tag, turn.one.tag, is_companion, lane, lane == 'normal' and 'limited' or lane)
    cost = cost + started.cost
  end
  count_turns(lane, 1)
  start(task)
  for _ = 2, list.batch_sizes[task.raw.name] or 1 do
    local another = ring.has_place(user, lane) and ring.has_place(turn.one, lane) and limit_turns.take_companion(turn, task)
    if not another then break end
    start(another, true)
  end
  limit_turns.charge(list, turn, task, cost)
  for _, one in ipairs({ user, user.group and user.ring_owner or nil }) do
    ring.count_others(one, one.ring_owner, can_be_served(one) and one.came == 0)
  end
end

-- Take one turn of an organization that is due because of its guaranteed share. The turn moves only the virtual time of
-- the organization's own ring.
local function take_guaranteed_turn(list, organization, lane)
  local user, place = next_member(organization, lane, true)
  organization.has_no_turn = not user
  if not user then return end
  local before, organization_lane = organization.tag, lane == 'normal' and 'guaranteed' or lane
  local task, priority = next_task.take(user, lane)
  if task then
    count_turns(lane, 1)
    hand_out(list, user, task, place, before, nil, organization_lane)
    take_companions(list, user, task, priority, place, before, organization_lane)
    guarantees.limit_tag(organization, before)
  else
    records.set(user, 'tag', user.tag) -- marks the user as changed, so that it is saved
  end
  return_to_line(organization.lines[lane], user, place, user.name, lane)
  ring.count_others(organization, counters.shard, can_be_served(organization) and organization.came == 0)
end

-- Return whether any user of a list can be served.
function turns.is_anyone_left(list)
  if not (lanes.are_used() or limits.are_waiting()) then return lines.next(list.normal, counters.shard) ~= nil end
  local left = left_below_urgent
  left_below_urgent = nil
  local first = next_lane(list)
  left_below_urgent = left
  return first and true
end

-- Take turns of the users, in order, up to the position `until_then`.
function turns.take(list, limit)
  while not is_full(limit) and list.given <= list.allowed and next_task.skipped < options.sweep_limit do
    local first, group, place = nil, nil, nil
    if lanes.are_used() or left_below_urgent or limits.are_waiting() or list.is_in_turn and guarantees.are_used() then
      first = next_lane(list)
      if not first then break end
      group, place = first.group, first.place
    else
      group, place = lines.next(list.normal, counters.shard, list.is_in_turn)
      if not group then break end
    end
    if first and first.turn then
      take_limit_turn(list, first.turn)
    elseif first and first.is_guaranteed then
      take_guaranteed_turn(list, first.one, first.lane)
    else
      local lane = first and first.lane or 'normal'
      if lane == 'normal' and place > list.until_then then
        list.is_held_back = true
        break
      end
      take_turn(list, lane, group, limit)
    end
  end
  list.is_held_back = list.is_held_back or next_task.skipped > 0
end
