-- The head of a task: the fields that never change for most tasks. These fields are stored in front of the payload, in
-- the same string, and not in a record. So a task that waits for its first start has no record, and takes a quarter
-- less memory. The first change of the task adds a record with the changed fields. A field of the record takes
-- precedence over the head. Without the field `state` the task is queued. `task_record.read` (lib/task_record.lua)
-- reads both.

local heads = {}

-- A head has four parts: the user, the moment of creation, the trace ('' if there is none), and the values that all
-- tasks with the same form have in common. JSON contains none of the separating characters. A task has no head if its texts contain
-- such a character, if the head would be longer than `MOST`, or if the task counts against a limit on bytes.
local SIGN, BETWEEN = '\31', '\29' -- `SIGN` is before each part and after the last part, `BETWEEN` separates the values of the last part
local PATTERN = '^\31([^\31]*)\31([^\31]*)\31([^\31]*)\31([^\31]*)\31()'
local FIELDS = { 'priority', 'max_retries', 'name', 'timeout', 'retries', 'max_deliveries' } -- the fields that tasks of one form share
heads.MOST = 500 -- most bytes of a head
local CREATED = 30 -- the bytes of a head for the moment and the signs

-- Return the last part of the heads of tasks with these fields (fields and values alternate), or nil if a text in it
-- can't be in a head.
function heads.common(fields)
  local values, by_field = {}, {}
  for i = 1, #fields, 2 do by_field[fields[i]] = fields[i + 1] end
  for i, field in ipairs(FIELDS) do values[i] = by_field[field] or '' end
  if string.find(table.concat(values), '[\29\31]') then return nil end
  return (string.gsub(table.concat(values, BETWEEN), BETWEEN .. '+$', ''))
end

function heads.fits(user_name, trace, common)
  local texts = trace and user_name .. trace or user_name
  return #texts + #common <= heads.MOST - CREATED and not string.find(texts, SIGN, 1, true)
end

-- Return the parts of a head before and after the moment of creation.
function heads.before(user_name) return SIGN .. user_name .. SIGN end
function heads.behind(trace, common) return SIGN .. (trace or '') .. SIGN .. common .. SIGN end

-- Return the values by field, from the last part of a head. Many tasks have the same last part, so the latest 100
-- results are kept.
local KEPT = 100
local kept, number_kept = {}, 0
local function common_fields(text)
  local fields = kept[text]
  if fields then return fields end
  if number_kept == KEPT then kept, number_kept = {}, 0 end
  local at
  fields, at = {}, 0
  for value in string.gmatch(text .. BETWEEN, '([^\29]*)\29') do
    at = at + 1
    if value ~= '' and FIELDS[at] then fields[FIELDS[at]] = value end
  end
  kept[text], number_kept = fields, number_kept + 1
  return fields
end

-- Return the fields of the head in this string, and the index at which the payload begins. Return an empty table and
-- nil if the string has no head.
function heads.read(text)
  local user, created, trace, common, at = string.match(text or '', PATTERN)
  if not user then return {}, nil end
  local shared = common_fields(common)
  return {
    state = 'queued', user = user, created = created, trace = trace ~= '' and trace or nil, priority = shared.priority, name = shared.name,
    max_retries = shared.max_retries, timeout = shared.timeout, retries = shared.retries, max_deliveries = shared.max_deliveries,
  }, at
end

-- Return the payload without its head.
function heads.payload_in(text)
  local _, last = string.find(string.sub(text or '', 1, heads.MOST), PATTERN)
  return last and string.sub(text, last + 1) or text
end
