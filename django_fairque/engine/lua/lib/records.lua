-- The record of a user or an organization in memory. `changed` has the names of the fields that must be written.
--
-- include numbers

local records = {}

records.TEXTS = { group = true, pause_note = true, plan = true, explicit = true } -- the fields that are texts; all other fields are numbers

function records.set(one, field, value)
  one[field] = value
  one.changed[field] = true
end

-- Return whether the record has the values that ARGV contains from index `at` on, if any: n, then n × (field, value or
-- '' for none). Moments of pauses are compared to the second, because an audit has no fractions.
function records.has_expected(one, at)
  for i = 1, tonumber(ARGV[at] or '0') do
    local field, value = ARGV[at + 2 * i - 1], ARGV[at + 2 * i]
    local found, number = one[field] or '', tonumber(value)
    if field == 'paused' and (number or 0) > 1 and found ~= '' then found, number = math.floor(found / 1e6), math.floor(number / 1e6) end
    if found ~= (records.TEXTS[field] and value or number or '') then return false end
  end
  return true
end

function records.add(one, field, amount)
  one[field] = one[field] + amount
  one.changed[field] = true
end

function records.forget_changes(one)
  local changed = one.changed
  for field in pairs(changed) do changed[field] = nil end -- clear the table and keep it: a new table would grow again with each field
end

local TEXTS = records.TEXTS

-- Return the changes: the fields with their values for HSET, and the names of removed fields.
function records.changes(one)
  local values, unset, n, never_served = {}, {}, 0, -math.huge
  for field in pairs(one.changed) do
    local value = one[field]
    if value == nil or value == never_served then
      unset[#unset + 1] = field
    else
      if not TEXTS[field] and value % 1e8 == 0 then value = numbers.argument(value) end
      values[n + 1], values[n + 2] = field, value
      n = n + 2
    end
  end
  return values, unset
end
