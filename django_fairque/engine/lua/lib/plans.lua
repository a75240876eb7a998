-- The plan of a user: its name and the values of its limits, as one text such as `pro weight=5.0 cap=20`. The field
-- `plan` has the newest text, and `explicit` has the names of the limits that were set individually, which no plan
-- changes.
--
-- include calls clock records ring rate

local plans = {}

local LIMITS = { 'weight', 'cap', 'rate', 'gap', 'burst', 'backlog', 'max_bytes', 'sla' }
local DEFAULTS = { weight = 1 } -- any other limit is off by default

local deployed -- the moment at which the sender's version of the project's code was last deployed
each_call(function() deployed = nil end)

local function is_explicit(user, name)
  return user.explicit and string.find(user.explicit, ' ' .. name .. ' ', 1, true) ~= nil
end

function plans.mark_explicit(user, name)
  if not is_explicit(user, name) then records.set(user, 'explicit', (user.explicit or ' ') .. name .. ' ') end
end

function plans.set_limit(user, name, value)
  if name == 'weight' then ring.change_weight(user, value or 1) else records.set(user, name, value) end
end

local function set_if_changed(user, name, value)
  value = value or DEFAULTS[name]
  if user[name] ~= value then plans.set_limit(user, name, value) end
end

-- Give the user a plan, or remove it (an empty text). The caller then passes a changed rate to `rate.change`. If the
-- user had no plan, its present limits count as set individually.
function plans.apply(user, text)
  local values = {}
  for name, value in string.gmatch(text, '(%S+)=(%S+)') do values[name] = tonumber(value) end
  for _, name in ipairs(LIMITS) do
    if not user.plan and user[name] ~= DEFAULTS[name] then plans.mark_explicit(user, name) end
    if not is_explicit(user, name) then set_if_changed(user, name, values[name]) end
  end
  records.set(user, 'plan', text ~= '' and text or nil)
end

-- Remove the plan and all limits, including limits that were set individually.
function plans.reset(user)
  records.set(user, 'explicit', nil)
  for _, name in ipairs(LIMITS) do set_if_changed(user, name, nil) end
  records.set(user, 'plan', nil)
end

-- Return the moment at which a version of the project's code was deployed. A version that no worker has reported yet is
-- newer than all others.
local function deployed_at(version)
  local MAX_VERSION_BYTES = 100 -- heartbeat.lua has the same number
  version = string.sub(version, 1, MAX_VERSION_BYTES)
  local entries = calls.attempt('LRANGE', P .. 'deployments', 0, -1) or {}
  for i = #entries, 1, -1 do
    local moment, name = string.match(entries[i], '^(%d+) (.*)$')
    if name == version then return tonumber(moment) end
  end
  return clock.now
end

-- Give the user the plan that a push contains. Invariant: the plan is not changed by a process with older code
-- (`version`) than that of the current plan, nor by a process that looked up the plan earlier (`looked_up`).
function plans.offer(user, text, looked_up, version)
  if text == (user.plan or '') or user.is_damaged or is_explicit(user, 'plan') or looked_up < (user.plan_looked_up or 0) then return end
  deployed = deployed or deployed_at(version)
  if deployed < (user.plan_deployed or 0) then return end
  local gap, burst = user.gap, user.burst
  plans.apply(user, text)
  rate.change(user, gap, burst)
  records.set(user, 'plan_looked_up', looked_up)
  records.set(user, 'plan_deployed', deployed)
end
