-- The record of an organization, and its position in the shard's ring. There an organization is treated like one user,
-- by the same functions of lib/ring.lua.
--
-- An organization exists as long as it has members (users whose record names it) or settings. Every field of its record
-- is a number, except the note about a pause. Its entry in the shard's ring begins with a byte with which no user id
-- begins.
--
-- include numbers calls keys counters slot writes records ring guarantees

local organizations = {}

organizations.PREFIX = '\255' -- no UTF-8 text contains this byte

local by_name, order = {}, {} -- `order` (also `organizations.order`): the organizations of this call
organizations.order = order
each_call(function()
  if not order[1] then return end
  by_name, order = {}, {}
  organizations.order = order
end)

-- Return the record of an organization. The caller must use its ring before the first write, by a read or a touch.
function organizations.load(name)
  local organization = by_name[name]
  if organization then return organization end
  organization = {
    name = name, entry = organizations.PREFIX .. name, key = P .. 'group:' .. name, ring = keys.members(name), ring_owner = counters.shard,
    ['ready:0'] = 0, ['ready:7'] = 0, weight = 1, tag = -math.huge, vtime = 0, arrival = 0, started = 0, members = 0, ready = 0, run = 0,
    expected = 0, start = 0, over = 0, credit = 0, companions = 0, counted = 0, came = 0, active = 0, lead = 0, others = 0, parked = 0, parked_urgent = 0, owed = 0,
    changed = {},
  }
  local flat = calls.attempt('HGETALL', organization.key)
  organization.is_damaged = not flat -- the record of an organization can be damaged, like that of a user
  flat = flat or {}
  for i = 1, #flat, 2 do organization[flat[i]] = numbers.read(flat[i + 1]) or organization[flat[i]] end
  if organization.weight <= 0 then organization.weight = 1 end
  organization.is_new = #flat == 0
  ring.note_place(organization, ring.can_be_served(organization))
  by_name[name] = organization
  order[#order + 1] = organization
  return organization
end

-- Return whether an entry of a ring is an organization whose record was not read in this call.
function organizations.is_unread(entry) return string.byte(entry) == string.byte(organizations.PREFIX) and not by_name[string.sub(entry, 2)] end

local function is_needed(organization)
  return organization.members > 0 or organization.ready > 0 or organization.run > 0 or organization.parked > 0 or organization.weight ~= 1
    or organization.cap or organization.paused or organization.share
end

local function save_organization(organization)
  if organization.is_damaged then return end
  local served = ring.can_be_served(organization)
  if served ~= organization.was_served then counters.count('behind', served and -1 or 1) end
  ring.take_place(organization)
  ring.note_parked(organization)
  if organization.share or organization.changed.share then guarantees.take_place(organization) end
  local values, unset = records.changes(organization)
  if is_needed(organization) then
    if organization.is_new then
      counters.count('groups', 1)
      writes.zadd(K.groups, 0, organization.name)
    end
    if #values > 0 then redis.call('HSET', organization.key, unpack(values)) end
    if #unset > 0 then redis.call('HDEL', organization.key, unpack(unset)) end
    organization.is_new = false
  elseif not organization.is_new then
    redis.call('DEL', organization.key)
    writes.zrem(K.groups, organization.name)
    counters.count('groups', -1)
    by_name[organization.name] = nil -- if the organization is used again in this call, it is a new one
  end
  ring.note_place(organization, served)
  records.forget_changes(organization)
end

function organizations.save()
  for _, organization in ipairs(order) do
    if next(organization.changed) then save_organization(organization) end
  end
end

-- Return the owner of the ring of this organization's users: the organization, or the shard if there is no
-- organization.
function organizations.ring_owner(organization_name)
  if not organization_name then return counters.shard end
  if not by_name[organization_name] then
    slot.touch(keys.members(organization_name))
    slot.touch(P .. 'urgent:' .. organization_name)
    slot.touch(P .. 'bulk:' .. organization_name)
  end
  return organizations.load(organization_name)
end
