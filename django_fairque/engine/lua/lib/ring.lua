-- The rule of fairness, written in one place: start-time fair queueing (Goyal, Vin, Cheng 1996).
--
-- A ring holds the users and organizations that can be served now. The shard's ring holds organizations, and users
-- without an organization; an organization's own ring holds its members. An entry of a ring (`one` below) has a `tag`
-- (its charged cost, divided by its weight), a `weight`, an `entry` (its name in the ring) and a `ring_owner`: the
-- shard's counters (`counters.shard`), or the organization. A ring owner has a virtual time (`vtime`), the tag of the
-- last arrival (`arrival`) and the number of started tasks (`started`). The score of an entry is its position in the
-- ring. docs/contributing/ring.md describes a turn in numbers.
--
-- The virtual time is the highest tag that an entry had reached when its turn came. The `expected` cost of running
-- tasks counts only as far as they have run: an estimate that was too high is corrected when they end, but the virtual
-- time is not. If a correction moves a tag below the virtual time, the virtual time moves back to this tag. A tag stays
-- below the virtual time only if its user waited as a newcomer while the virtual time rose.
--
-- A ring has two groups of entries; the scores of the first group are below all tags:
-- - Newcomers, by arrival (`came`). A newcomer returns with a tag below the virtual time; the time that it did not use
--   is lost. So the newcomer's tag becomes the virtual time of its return, and does not change until the newcomer has a
--   turn.
-- - The other entries, by their tags.
-- Newcomers are served first. Their service does not move the virtual time, and an endless stream of newcomers would
-- starve all other entries. So while other entries wait (`others` is their number), the service of newcomers is counted
-- in the ring owner's `lead`: cost / sum of the weights of all entries with work (`active`, in millionths). The lead
-- shrinks as the virtual time rises. If virtual time + lead exceeds the tag of the first of the other entries by more
-- than the expected cost of a task, that entry is overdue and is served next. (WF2Q+, Bennett and Zhang 1997: the
-- virtual time advances by service / weights, and is at least the lowest tag. Service at a tag moves the lowest tag, so
-- only newcomers need counting.)
--
-- Tasks of workers that serve lists of users are counted separately (lib/list_credit.lua). If the queue has several
-- shards, a user that returns at its own tag is placed slightly before it (`margin`): the virtual time of this shard,
-- and with it the user's tag, may be behind the virtual times of other shards (lib/turns.lua). Turns of a list of users
-- do not change this margin.
--
-- include options counters clock writes records

local ring = {
  TASK_COST = 1e6,  -- with `FAIR_BY = tasks`, the cost of each task
  FIRST_COST = 1e5, -- the expected cost of a task before any task has ended: 0.1 s
  LEAST_COST = 100, -- the least cost of a task, that of handling it
  AHEAD = 10e6,     -- urgent tasks and tasks with limits start while their user's tag is at most this far beyond the virtual time: 10 s, or 10 tasks
}

local set, add = records.set, records.add -- local aliases, which Lua finds faster: these functions are called often
local EPOCH = clock.EPOCH
local MICRO = 1e6 -- weights in sums are counted in millionths: whole numbers keep the sum of any number of weights exact

-- Return the key of the ring's sorted set.
function ring.key(ring_owner) return ring_owner == counters.shard and K.ring or ring_owner.ring end

-- Return whether a user or organization can be served. Invariant: it is in its ring exactly if it can be served. For an
-- organization, `ready` is the number of its members in its ring, and `run` is the number of their running tasks.
local function can_be_served(one)
  return one.ready > 0 and not (one.is_damaged or one.is_unreadable or one.paused or one.held) and (not one.cap or one.run < one.cap)
end
ring.can_be_served = can_be_served

-- Return whether only a lack of tasks can prevent a start in this lane. A user may run one urgent task more than `cap`;
-- an organization may not.
function ring.has_place(one, lane)
  local beyond = lane == 'urgent' and not one.members and 1 or 0
  return not (one.is_damaged or one.is_unreadable or one.paused or one.held) and (not one.cap or one.run < one.cap + beyond)
end

-- Return by how much the tag of this lane is too far ahead for tasks with limits. Members of an organization without
-- members in its ring are not bounded.
local function too_far(one, lane)
  local ring_owner = one.ring_owner
  if ring_owner ~= counters.shard and ring_owner.ready == 0 then return 0 end
  return math.max(0, (lane == 'urgent' and (one.urgent_tag or 0) or one.tag) - ring.AHEAD - ring_owner.vtime)
end
function ring.is_ahead(one, lane) return too_far(one, lane) > 0 end

-- Write the score in `parked` of a user or organization because of which users are parked (lib/limit_turns.lua): the
-- virtual time from which their tasks may start. Write none while it can't start any task.
function ring.note_parked(one)
  if one.parked == 0 and not one.has_parked then return end
  local at
  if one.parked_urgent > 0 and ring.has_place(one, 'urgent') then at = too_far(one, 'urgent') end
  if one.parked > one.parked_urgent and ring.has_place(one, 'normal') then at = math.min(at or math.huge, too_far(one, 'normal')) end
  if at then
    local ring_owner = one.ring_owner
    if ring_owner ~= counters.shard then at = at / 2 * math.min(1, ring_owner.active / MICRO / ring_owner.weight) end -- for members only an estimate
    writes.zadd(K.parked, at > 0 and counters.shard.vtime + at or 0, one.entry) -- 0 and not the virtual time, which may move back
    ring.has_grown = true
  else
    writes.zrem(K.parked, one.entry)
  end
  one.has_parked = nil
end

-- Return whether a task of this lane can be started.
local READY = { urgent = 'ready:7', bulk = 'ready:0' }
local function can_start(one, lane)
  if lane == 'normal' then return can_be_served(one) end
  return one[READY[lane]] > 0 and ring.has_place(one, lane)
end
ring.can_start = can_start

-- Return whether a task of any lane can be started.
function ring.can_start_any(one) return can_be_served(one) or can_start(one, 'urgent') or can_start(one, 'bulk') end

-- Return the key of a lane of this ring owner: its ring, or the sorted set of entries with urgent or with bulk tasks.
function ring.lane_key(ring_owner, lane)
  if lane == 'normal' then return ring.key(ring_owner) end
  return ring_owner == counters.shard and K[lane] or P .. lane .. ':' .. ring_owner.name
end

-- `ring.has_grown`: whether a user or organization can be served that could not be served before.
local others_elsewhere -- whether users that are not newcomers wait on other shards
each_call(function() ring.has_grown, others_elsewhere = false, false end)

function ring.note_growth() ring.has_grown = true end
function ring.note_others_elsewhere(is_so) others_elsewhere = is_so end

-- Set a field of a ring owner. Invariant: it is written with the counters, or with the organization's record.
local function set_ring_field(ring_owner, field, value)
  if ring_owner == counters.shard then counters.set(field, value) else set(ring_owner, field, value) end
end

-- Return a weight in the unit of the ring owner's sum.
local function micro(weight) return math.floor(weight * MICRO + 0.5) end

-- Return the cost that is charged when a task is handed out. Invariant: no cost is below `LEAST_COST`, so each task
-- moves the tag.
function ring.expected_cost(one)
  if options.fair_by_tasks then return ring.TASK_COST end
  return math.floor(math.max(ring.LEAST_COST, one.mean or (counters.shard.mean > 0 and counters.shard.mean) or ring.FIRST_COST))
end

-- Return the mean cost of a task. While newcomers are served, other entries may be late by this cost, which is the same
-- for all.
function ring.mean_cost()
  if options.fair_by_tasks then return ring.TASK_COST end
  return math.max(ring.LEAST_COST, counters.shard.mean > 0 and counters.shard.mean or ring.FIRST_COST)
end

-- Return the difference between the tags of two entries that arrive one after the other. Invariant: no two tags of
-- arrivals are equal, so names never decide. The step must stay exact as the tag grows: half a nanosecond of worker
-- time is exact in a double up to a virtual time of 2^41 us (25 days of one user alone on one slot); from 2^38 on the
-- step grows with the tag.
function ring.arrival_step(tag)
  local _, exponent = math.frexp(math.max(tag, 2 ^ 38))
  return math.ldexp(1, exponent - 50)
end

-- Return the tag of an entry that arrives now. Invariant: it is above the virtual time and all earlier arrivals.
function ring.arrive(ring_owner)
  local at = math.max(ring_owner.arrival, ring_owner.vtime)
  set_ring_field(ring_owner, 'arrival', at + ring.arrival_step(at))
  return ring_owner.arrival
end

-- Return the tag below which entries that are no newcomers are overdue and go before newcomers. Invariant: newcomers
-- delay the first of these entries by no more than one task of mean cost. A difference by rounding does not count.
local ROUNDING = 1e-5
function ring.newcomers_turn(ring_owner) return ring_owner.vtime + ring_owner.lead - (1 + ROUNDING) * ring.mean_cost() end

-- Raise the virtual time to this tag, if it is lower. Invariant: virtual time + lead does not fall.
function ring.raise_virtual_time(ring_owner, tag)
  local step = tag - ring_owner.vtime
  if step <= 0 then return end
  set_ring_field(ring_owner, 'vtime', tag)
  if ring_owner.lead > 0 then set_ring_field(ring_owner, 'lead', math.max(0, ring_owner.lead - step)) end
end

-- Change the lead of newcomers. Invariant: the lead is never negative.
local function change_lead(ring_owner, amount)
  if amount ~= 0 then set_ring_field(ring_owner, 'lead', math.max(0, ring_owner.lead + amount)) end
end

-- Return the cost that the tag contains for running tasks: the expected cost, or the time that they had taken when one
-- of them last began or ended, if that was more (`over`). Invariant: the tag does not fall while a task runs longer
-- than expected.
local function pending(one) return one.expected + one.over end
ring.pending = pending

-- Set the tag at which an entry begins. Invariant: unused time before this tag gives no advantage, and neither does
-- credit from lists, also for running tasks.
function ring.begin(one, tag)
  set(one, 'tag', tag)
  set(one, 'credit', options.fair_by_tasks and 0 or -pending(one) / one.weight)
end

-- Return the position of an entry in its ring, which is its score there. Invariant: newcomers, in the order of their
-- arrival, are before all other entries.
local function place_of(one)
  if one.came > 0 then return one.came - clock.NEVER end
  return one.tag - (one.margin or 0)
end
ring.place_of = place_of

-- Return the position of an entry in a lane.
function ring.place_in(one, lane)
  if lane == 'normal' then return place_of(one) end
  return lane == 'urgent' and one.urgent_tag or one.tag
end

-- Add a user or organization to its ring. If its tag is below the virtual time, it becomes a newcomer and its tag is
-- raised. Invariant: after this, no tag in the ring is below the virtual time, except those of newcomers.
function ring.join(one)
  local ring_owner = one.ring_owner
  if one.came > 0 or one.tag < ring_owner.vtime then
    if one.came == 0 and ring_owner.started > 0 then -- no entry is a newcomer before the first turn in its ring
      counters.set('newest', math.max(clock.now, counters.shard.newest + 1))
      set(one, 'came', counters.shard.newest)
    end
    local tag = ring.arrive(ring_owner)
    ring.begin(one, one.lane_turn and math.max(tag, one.tag) or tag) -- a tag that turns in other lanes have raised is kept
  end
  one.margin = options.is_spread and ring_owner == counters.shard and one.came == 0 and ring.arrival_step(one.tag) / 2 or nil
  writes.zadd(ring.key(ring_owner), place_of(one), one.entry)
  if ring_owner == counters.shard or can_be_served(ring_owner) then ring.has_grown = true end
end

-- Count an entry that is no newcomer, or stop counting it. Invariant: `others` is the number of such entries in the
-- ring.
local function count_others(one, ring_owner, is_other)
  if is_other == one.is_other then return end
  set_ring_field(ring_owner, 'others', math.max(0, ring_owner.others + (is_other and 1 or -1)))
  one.is_other = is_other
end
ring.count_others = count_others

-- Count the weight of an entry. Invariant: `active` is the sum of the weights of the users and organizations that can
-- be served or have running tasks. The counted weight is kept in the record (`counted`), so a record that other
-- software has written is counted correctly at its next change.
local function count_weight(one, served, moved, has_lanes)
  local weight, before = (served or one.run > 0 or has_lanes and ring.can_start_any(one)) and micro(one.weight) or 0, one.counted
  if moved and one.counted ~= 0 then
    set_ring_field(one.was_ring_owner, 'active', math.max(0, one.was_ring_owner.active - one.counted))
    set(one, 'counted', 0)
  end
  if weight ~= one.counted then
    set_ring_field(one.ring_owner, 'active', math.max(0, one.ring_owner.active + weight - one.counted))
    set(one, 'counted', weight)
  end
  if not one.members and (weight > 0) ~= (before > 0) then -- `one` is a user, not an organization
    counters.set('active_users', math.max(0, counters.shard.active_users + (weight > 0 and 1 or -1)))
  end
end

-- Return whether an entry had no task that can be started, and now has one in lane urgent or bulk, with a tag below the
-- virtual time.
local function begins_in_lane(one, moved)
  local had_one = not moved and (one.was_served or one.was_urgent or one.was_bulk)
  return not had_one and one.tag < one.ring_owner.vtime and ring.can_start_any(one)
end

-- Write the position of an entry in a lane. Invariant: the sorted set of a lane contains exactly the entries with a
-- task of this lane that can be started. The entries are ordered by their tags; in `urgent` by `urgent_tag`, which is
-- not below the virtual time when an entry is added.
local function take_place_in_lane(one, lane, was_there, moved)
  local is_there = can_start(one, lane)
  if was_there and (moved or not is_there) then
    if one.was_ring_owner ~= counters.shard then add(one.was_ring_owner, READY[lane], -1) end
    writes.zrem(ring.lane_key(one.was_ring_owner, lane), one.entry)
  end
  if not is_there then return end
  local enters = moved or not was_there
  if enters then
    if one.ring_owner ~= counters.shard then add(one.ring_owner, READY[lane], 1) end
    if lane == 'urgent' then set(one, 'urgent_tag', math.max(one.urgent_tag or 0, one.ring_owner.vtime)) end
    -- A task of lane normal that can be started has already woken a worker, but not a worker whose free slots are
    -- reserved.
    local wakes = moved or not one.was_served or counters.shard.reserved >= clock.now
    if wakes and (one.ring_owner == counters.shard or can_start(one.ring_owner, lane)) then ring.has_grown = true end
  end
  if enters or ring.place_in(one, lane) ~= (lane == 'urgent' and one.was_urgent_tag or one.was_tag) then
    writes.zadd(ring.lane_key(one.ring_owner, lane), ring.place_in(one, lane), one.entry)
  end
end

-- Write the position of a user or organization after a change: it enters its ring, moves in it, or leaves it. Return
-- whether the user or organization can be served. Invariant: it is in a ring exactly if it can be served, and in one
-- ring only; no other function adds to a ring or removes from it.
function ring.take_place(one)
  local served, was_served, moved = can_be_served(one), one.was_served, one.ring_owner ~= one.was_ring_owner
  local has_lanes = one['ready:7'] > 0 or one['ready:0'] > 0 or one.was_urgent or one.was_bulk
  count_weight(one, served, moved, has_lanes)
  if was_served and (moved or not served) then
    if one.was_ring_owner ~= counters.shard then add(one.was_ring_owner, 'ready', -1) end
    count_others(one, one.was_ring_owner, false)
    writes.zrem(ring.key(one.was_ring_owner), one.entry)
  end
  if served and (moved or not was_served) then
    if one.ring_owner ~= counters.shard then add(one.ring_owner, 'ready', 1) end
    ring.join(one)
  elseif has_lanes and not served and begins_in_lane(one, moved) then
    ring.begin(one, ring.arrive(one.ring_owner))
  elseif served and one.came == 0 and (one.tag ~= one.was_tag or one.was_newcomer) then
    local was_behind = one.was_tag and one.was_tag < one.ring_owner.vtime -- a newcomer that waited while others were served
    if one.tag < one.ring_owner.vtime and not was_behind then
      set_ring_field(one.ring_owner, 'vtime', one.tag)
      set_ring_field(one.ring_owner, 'arrival', one.tag)
    end
    writes.zadd(ring.key(one.ring_owner), place_of(one), one.entry)
  end
  if served then count_others(one, one.ring_owner, one.came == 0) end
  if has_lanes then
    take_place_in_lane(one, 'urgent', one.was_urgent, moved)
    take_place_in_lane(one, 'bulk', one.was_bulk, moved)
  end
  return served
end

-- Return the time that all running tasks have taken until now. Invariant: tasks that run together in one call count
-- once.
local function elapsed(one)
  if options.fair_by_tasks then return one.expected end -- by tasks, the cost of a task is used up when it is handed out
  return math.max(0, (one.run - one.companions) * (clock.now - EPOCH) - one.start)
end
ring.elapsed = elapsed

-- Return the tag without the expected cost that running tasks have not used yet. Invariant: it is never above the tag.
local function reached(one) return one.tag - math.max(0, pending(one) - elapsed(one)) / one.weight end

-- Add running tasks, or (with negative numbers) remove them. `used` is the final cost of the removed tasks.
-- `companions` is the number of tasks that share a call with another task: the time of that call counts once.
-- Invariant: the tag contains the final costs and the pending cost, divided by the weight.
local function account(one, tasks, cost, start_sum, used, companions)
  local before, run, changed = one.expected + one.over, one.run + tasks, one.changed
  changed.run, changed.expected, changed.start, changed.tag, one.run = true, true, true, true, run
  if run <= 0 then
    if one.companions ~= 0 then set(one, 'companions', 0) end
    one.expected, one.start = 0, 0 -- the sums are exact only up to some 150 tasks, and nothing of them may be left
    if one.over ~= 0 then set(one, 'over', 0) end
  else
    if companions ~= 0 then add(one, 'companions', companions) end
    one.expected, one.start = math.max(0, one.expected + cost), one.start + start_sum
    local overrun = math.max(0, elapsed(one) - one.expected)
    if overrun ~= one.over then set(one, 'over', overrun) end
  end
  one.tag = one.tag + (used + (one.expected + one.over) - before) / one.weight
end
ring.account = account

-- Charge one task of this cost and lane to an entry. `place` is the position of the entry in its turn, or nil if a
-- worker with a list of users took the task out of turn. Returns the task's part of the lead, if the entry is a
-- newcomer and other entries wait. Invariant: the virtual time rises to the reached tag of an entry that had a turn,
-- and never above it. Turns in lane normal move it; turns in other lanes move it only if nobody but newcomers waits.
function ring.advance(one, cost, place, is_companion, lane)
  local ring_owner, part = one.ring_owner, 0
  local has_others = ring_owner.others > 0 or ring_owner == counters.shard and others_elsewhere
  if lane ~= 'normal' then
    if place and not has_others then ring.raise_virtual_time(ring_owner, math.min(one.tag, reached(one))) end
    if one.came > 0 then set(one, 'lane_turn', 1) end
  elseif one.came > 0 then
    set(one, 'came', 0)
    if one.lane_turn then set(one, 'lane_turn', nil) end
    if place then
      if has_others then part = cost * MICRO / math.max(ring_owner.active, micro(one.weight)) end
      change_lead(ring_owner, part)
    end
  elseif place then
    ring.raise_virtual_time(ring_owner, math.min(place, reached(one)))
  end
  account(one, 1, cost, is_companion and 0 or clock.now - EPOCH, 0, is_companion and 1 or 0)
  if lane == 'urgent' then set(one, 'urgent_tag', math.max(one.urgent_tag or 0, ring_owner.vtime) + cost / one.weight) end
  if options.fair_by_tasks and not place then add(one, 'credit', cost / one.weight) end
  add(one, 'started', 1)
  return part
end

-- Replace the expected cost of tasks that have ended by the actual cost (`used`). `sums` is that of lib/charges.lua,
-- and `lead` is the change of the lead. Invariant: a task without a run costs nothing. But tasks that are given back
-- have moved the virtual time, and other users have begun there, so the user returns to the virtual time and not before
-- it.
function ring.correct(one, sums, lead, is_given_back)
  local tag = one.tag
  change_lead(one.ring_owner, lead)
  account(one, -sums.tasks, -sums.cost, sums.start, sums.used, -sums.companions)
  if sums.urgent ~= 0 and one.urgent_tag then add(one, 'urgent_tag', sums.urgent / one.weight) end
  if sums.listed ~= 0 then add(one, 'credit', sums.listed / one.weight) end
  if is_given_back and one.tag < one.ring_owner.vtime then set(one, 'tag', math.min(tag, ring.arrive(one.ring_owner))) end
end

-- Change the weight of an entry. Invariant: the cost by which it is ahead of the virtual time stays the same.
function ring.change_weight(one, weight)
  local vtime = one.ring_owner.vtime
  for _, field in ipairs({ 'tag', 'urgent_tag' }) do
    local tag = one[field]
    if tag and tag > vtime then set(one, field, vtime + (tag - vtime) * one.weight / weight) end
  end
  set(one, 'weight', weight)
end

-- Remember the written values of an entry, so that `ring.take_place` detects later changes. `served`: whether the entry
-- can be served.
function ring.note_place(one, served)
  one.was_served, one.was_tag, one.was_ring_owner = served, one.tag, one.ring_owner
  one.is_other, one.was_newcomer = served and one.came == 0, one.came > 0
  one.was_urgent, one.was_bulk, one.was_urgent_tag = one['ready:7'] > 0 and can_start(one, 'urgent'), one['ready:0'] > 0 and can_start(one, 'bulk'), one.urgent_tag
end

-- Return whether any task can be started. Lanes without tasks are not read.
function ring.has_anyone()
  local shard = counters.shard
  return redis.call('ZCARD', K.ring) > 0 or shard['depth:7'] > 0 and redis.call('ZCARD', K.urgent) > 0
    or shard['depth:0'] > 0 and redis.call('ZCARD', K.bulk) > 0
    or shard.limited > 0 and redis.call('EXISTS', K['limited:urgent'], K['limited:normal'], K['limited:bulk'], K.parked) > 0
end

-- Note that a worker has reserved slots. Such workers wait for the wake markers of lanes while lower lanes may take no
-- slot. A day after the last such call, these markers are not set any more.
local RESERVED_TIME = 86400e6
function ring.note_reserved_slots()
  if counters.shard.reserved < clock.now + RESERVED_TIME / 2 then counters.set('reserved', clock.now + RESERVED_TIME) end
end

-- Set the wake markers of lanes with tasks that can be started. Every worker that waits for markers of lanes reads
-- `wake:urgent`, so with `always` that marker is set in any case.
function ring.wake_lanes(always)
  if counters.shard.reserved < clock.now then return end
  if always or counters.shard['depth:7'] > 0 and redis.call('ZCARD', K.urgent) > 0 then redis.call('ZADD', K['wake:urgent'], 0, 'ready') end
  if redis.call('ZCARD', K.ring) > 0 then redis.call('ZADD', K['wake:normal'], 0, 'ready') end
end

-- Set the wake markers on which idle workers wait: new work has come, or a worker took a marker and more work is left.
function ring.wake_if(needed)
  if not needed or counters.shard.paused ~= 0 or not ring.has_anyone() then return end
  redis.call('ZADD', K.wake, 0, 'ready')
  ring.wake_lanes()
end
