-- The head of a task. The fields that never change for most tasks are not in their records, but in front of their
-- payloads, in the same string. So a task that waits for its first start has no record, which takes a quarter less
-- memory. Its first change adds a record with the changed fields. A field of the record takes precedence over the head;
-- without `state` the task is queued. `task_record.read` (lib/task_record.lua) reads both.

local heads = {}

-- The parts of a head: user, moment of creation, trace ('' if there is none), and what tasks of one form have in common. JSON contains no
-- such characters. A task whose texts contain them, whose head would be longer, or that counts against a limit on bytes, has no head.
local SIGN, BETWEEN = '\31', '\29' -- before each part and behind the last one; between the values of the last one
local PATTERN = '^\31([^\31]*)\31([^\31]*)\31([^\31]*)\31([^\31]*)\31()'
local FIELDS = { 'priority', 'max_retries', 'name', 'timeout', 'retries', 'max_deliveries' } -- that tasks of one form have in common
heads.MOST = 500 -- bytes of a head
local CREATED = 30 -- the number of them that the moment and the signs take

-- The last part of the heads of tasks with these fields (fields and values in turns), nil if a text in it can't be in a head.
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

-- The parts of a head before and after the moment of creation.
function heads.before(user_name) return SIGN .. user_name .. SIGN end
function heads.behind(trace, common) return SIGN .. (trace or '') .. SIGN .. common .. SIGN end

-- Values by field, from the last part of a head. Many tasks have the same last part, so the latest ones are kept.
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

-- The fields that this head stands for, and where the payload begins; an empty table and nil if the string has no head.
function heads.read(text)
  local user, created, trace, common, at = string.match(text or '', PATTERN)
  if not user then return {}, nil end
  local shared = common_fields(common)
  return {
    state = 'queued', user = user, created = created, trace = trace ~= '' and trace or nil, priority = shared.priority, name = shared.name,
    max_retries = shared.max_retries, timeout = shared.timeout, retries = shared.retries, max_deliveries = shared.max_deliveries,
  }, at
end

-- The payload in the string of its key.
function heads.payload_in(text)
  local _, last = string.find(string.sub(text or '', 1, heads.MOST), PATTERN)
  return last and string.sub(text, last + 1) or text
end
