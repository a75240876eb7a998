-- An organization's record and its place in the ring, where it stands as if it were one user. Used together with
-- lib/user.lua.
--
-- An organization exists as long as it has members (users whose record names it) or settings. Every field of its record but the note
-- of a pause is a number. In the shard's ring its entry begins with a byte with which no user's id begins.

local AS_ORGANIZATION = '\255' -- in no UTF-8 text

local function members_key(organization_name) return P .. 'ring:' .. organization_name end

local organizations, organization_order = {}, {}
each_call(function()
  if organization_order[1] then organizations, organization_order = {}, {} end
end)

-- The caller uses its ring before the first write: reads or touches it.
local function load_organization(name)
  local organization = organizations[name]
  if organization then return organization end
  organization = {
    name = name, entry = AS_ORGANIZATION .. name, key = P .. 'group:' .. name, ring = members_key(name), ring_owner = stat,
    weight = 1, tag = -math.huge, vtime = 0, arrival = 0, started = 0, members = 0, ready = 0, run = 0,
    expected = 0, start = 0, over = 0, credit = 0, companions = 0, counted = 0, came = 0, active = 0, lead = 0, others = 0,
    changed = {},
  }
  local flat = attempt('HGETALL', organization.key)
  organization.is_damaged = not flat -- as of a user
  flat = flat or {}
  for i = 1, #flat, 2 do organization[flat[i]] = number(flat[i + 1]) or organization[flat[i]] end
  if organization.weight <= 0 then organization.weight = 1 end
  organization.is_new = #flat == 0
  note_place(organization)
  organizations[name] = organization
  organization_order[#organization_order + 1] = organization
  return organization
end

local save_organizations
do

local function is_needed(organization)
  return organization.members > 0 or organization.ready > 0 or organization.run > 0 or organization.weight ~= 1 or organization.cap or organization.paused
end

local function save_organization(organization)
  if organization.is_damaged then return end
  local served = can_be_served(organization)
  if served ~= organization.was_served then count('behind', served and -1 or 1) end
  take_place(organization)
  local values, unset = changes(organization)
  if is_needed(organization) then
    if organization.is_new then
      count('groups', 1)
      zadd(K.groups, 0, organization.name)
    end
    if #values > 0 then redis.call('HSET', organization.key, unpack(values)) end
    if #unset > 0 then redis.call('HDEL', organization.key, unpack(unset)) end
    organization.is_new = false
  elseif not organization.is_new then
    redis.call('DEL', organization.key)
    zrem(K.groups, organization.name)
    count('groups', -1)
    organizations[organization.name] = nil -- who names it again begins a new one
  end
  note_place(organization)
  forget_changes(organization)
end

function save_organizations()
  for _, organization in ipairs(organization_order) do
    if next(organization.changed) then save_organization(organization) end
  end
end

end
