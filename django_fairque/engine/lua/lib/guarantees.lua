-- The shares of the worker time that are guaranteed to organizations. An organization gets at least its share while it
-- has tasks that can start.
--
-- While an organization with a share is waiting, the amount that it is owed grows by `share × cost` when a task of
-- another user is charged, and shrinks by `(1 − share) × cost` when a member's task is charged, in any lane and also in
-- turns of the ring. The organization is served next, before the entries of the ring, if it is owed the expected cost
-- of a task and has less than its share of the running tasks. So its share is a minimum, and other users may use the
-- part that it does not need.
--
-- `guarantee_clock` is the total cost that was charged on the shard while any of these organizations waited. So the
-- start of a task changes one number for all of them: an organization is owed `owed + share × (guarantee_clock −
-- owed_from)`. An organization without `owed_from` does not wait. `K.guaranteed` has all organizations with a share,
-- ordered by the value of `guarantee_clock` at which they are due.
--
-- include counters clock writes records ring

local guarantees = {}

local MOST = 0.9 -- the largest sum of the guaranteed shares on a shard
local set = records.set

-- Return whether an organization with a guaranteed share waits.
function guarantees.are_used() return counters.shard.guaranteed > 0 end

-- Return the largest amount that an organization may be owed or may owe, by the same rule as for a lane
-- (lib/lanes.lua).
local function most_owed(cost) return math.max(ring.AHEAD, 2 * math.abs(cost)) end

local function owed(organization)
  return organization.owed + (organization.owed_from and organization.share * (counters.shard.guarantee_clock - organization.owed_from) or 0)
end

-- Charge the cost of a task to the guarantee of its ring owner, which is an organization or the shard. A negative cost
-- corrects a charge that was too high. Invariant: the bound never reduces a larger debt from an earlier, longer task.
function guarantees.charge(ring_owner, cost)
  local share, shard = ring_owner.share, counters.shard
  if not share then
    if shard.guaranteed > 0 then counters.set('guarantee_clock', shard.guarantee_clock + cost) end
    return
  end
  local most = most_owed(cost)
  local before = math.min(owed(ring_owner), most)
  if shard.guaranteed > 0 then counters.set('guarantee_clock', shard.guarantee_clock + cost) end
  set(ring_owner, 'owed', math.min(most, math.max(before - (1 - share) * cost, math.min(before, -most))))
  if ring_owner.owed_from then set(ring_owner, 'owed_from', counters.shard.guarantee_clock) end
end

-- Return whether the organization is served next, before the entries of the ring.
function guarantees.is_due(organization)
  local cost = ring.expected_cost(organization)
  return owed(organization) >= cost and organization.run < organization.share * (counters.shard.running + 1)
end

local due -- names of waiting organizations and when they are due, in order; nil until this call has read them
each_call(function() due = nil end)

-- Return the names of the organizations that may be due, ordered by when they became due.
function guarantees.list_due()
  due = due or redis.call('ZRANGEBYSCORE', K.guaranteed, '-inf', '(' .. clock.NEVER, 'WITHSCORES')
  local names = {}
  for i = 1, #due, 2 do
    if tonumber(due[i + 1]) > counters.shard.guarantee_clock then break end
    names[#names + 1] = due[i]
  end
  return names
end

-- Lower the tag of an organization after a turn that it got because of its guaranteed share: the tag rises to at most
-- `ring.AHEAD` beyond the virtual time. Without this bound the organization would get no turn in the ring until the
-- others have received as much. `before` is the tag before the turn. Invariant: a correction of the running tasks moves
-- no tag below the current virtual time.
function guarantees.limit_tag(organization, before)
  local ahead = organization.ring_owner.vtime + math.max(ring.AHEAD, ring.pending(organization) / organization.weight)
  if organization.tag > math.max(before, ahead) then set(organization, 'tag', math.max(before, ahead)) end
end

-- Set a share, or remove it (nil). If the sum of all shares would be too large, change nothing and return the names and
-- shares of the other organizations.
function guarantees.set_share(organization, share)
  local sum, others = share or 0, {}
  for _, name in ipairs(share and redis.call('ZRANGE', K.guaranteed, 0, -1) or {}) do
    local other = name ~= organization.name and redis.call('HGET', P .. 'group:' .. name, 'share')
    if other then
      sum = sum + tonumber(other)
      others[#others + 1], others[#others + 2] = name, other
    end
  end
  if sum > MOST + 1e-9 then return others end
  if organization.share then set(organization, 'owed', owed(organization)) end
  if organization.owed_from then set(organization, 'owed_from', counters.shard.guarantee_clock) end
  set(organization, 'share', share)
  return nil
end

-- Write the position of an organization after a change. Invariant: the shard's counter `guaranteed` is the number of
-- waiting organizations with a share.
function guarantees.take_place(organization)
  local share, waits = organization.share, organization.share and ring.can_start_any(organization)
  if waits and not organization.owed_from then
    set(organization, 'owed_from', counters.shard.guarantee_clock)
    counters.count('guaranteed', 1)
  elseif organization.owed_from and not waits then
    if share then set(organization, 'owed', math.min(owed(organization), most_owed(ring.expected_cost(organization)))) end
    set(organization, 'owed_from', nil)
    counters.count('guaranteed', -1)
  end
  if share then
    local at = waits and organization.owed_from + (ring.expected_cost(organization) - organization.owed) / share or clock.NEVER
    writes.zadd(K.guaranteed, at, organization.name)
  elseif organization.changed.share then
    set(organization, 'owed', nil)
    writes.zrem(K.guaranteed, organization.name)
  end
end
