-- A group's record and its place in the ring, where it stands as if it were one user.
--
-- A group is there as long as it has members (users whose record names it) or settings of its own. Every field of its
-- record is a number. In the shard's ring it is told from users by a byte with which no user's id begins.

local AS_ORGANIZATION = '\255' -- in no UTF-8 text

local function members_key(group) return P .. 'ring:' .. group end

local groups, group_order
each_call(function() groups, group_order = emptied(groups), emptied(group_order) end)

-- The caller uses its ring before the first write: reads or touches it.
local function load_group(name)
  local g = groups[name]
  if g then return g end
  g = {
    name = name, entry = AS_ORGANIZATION .. name, key = P .. 'group:' .. name, ring = members_key(name), floor = stat,
    weight = 1, tag = -math.huge, vtime = 0, arrival = 0, started = 0, members = 0, ready = 0, run = 0,
    expected = 0, begun = 0, over = 0, beside = 0, companions = 0, counted = 0, early = 0, active = 0, lead = 0, place = 0,
  }
  local flat = attempt('HGETALL', g.key)
  g.is_damaged = not flat -- as of a user
  flat = flat or {}
  for i = 1, #flat, 2 do g[flat[i]] = number(flat[i + 1]) or g[flat[i]] end
  if g.weight <= 0 then g.weight = 1 end
  g.is_new = #flat == 0
  note_before(g)
  groups[name] = g
  group_order[#group_order + 1] = g
  return g
end

local save_groups
do

local function is_needed(g)
  return g.members > 0 or g.ready > 0 or g.run > 0 or g.weight ~= 1 or g.cap or g.paused
end

local function save_group(g)
  if g.is_damaged then return end
  local served = can_be_served(g)
  if served ~= g.was_served then count('behind', served and -1 or 1) end
  take_place(g)
  local values, unset = changes(g)
  if is_needed(g) then
    if g.is_new then
      count('groups', 1)
      zadd(K.groups, 0, g.name)
    end
    if #values > 0 then redis.call('HSET', g.key, unpack(values)) end
    if #unset > 0 then redis.call('HDEL', g.key, unpack(unset)) end
    g.is_new = false
  elseif not g.is_new then
    redis.call('DEL', g.key)
    zrem(K.groups, g.name)
    count('groups', -1)
    groups[g.name] = nil -- who names it again begins a new one
  end
  note_before(g)
end

function save_groups()
  for _, g in ipairs(group_order) do
    if next(g.changed) then save_group(g) end
  end
end

end
