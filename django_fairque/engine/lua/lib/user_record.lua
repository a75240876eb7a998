-- The stored form of a user's record: one string, with eight bytes for each number. To read and write records is a third of the work of a
-- user's turn, so a call reads and writes the records of all its users with one command each.
--
-- First come the numbers that most records have, then three numbers that say which of the other fields follow (bit n of the first one
-- stands for field n of the first group below), then these fields, and behind them the texts, packed. engine/scripting/user_record.py reads the same
-- form. A new field is added at the end of a group, so that older records stay valid; a group has at most 52.
--
-- include lists records

local user_record = {}

local GROUPS = {
  {
    'ready:0', 'ready:1', 'ready:2', 'ready:4', 'ready:5', 'ready:6', 'ready:7', 'sched', 'deferred', 'limited', 'parked', 'parked_urgent',
    'bytes', 'dead', 'result_bytes', 'failed', 'companions', 'urgent_tag', 'lane_turn', 'weight', 'cap', 'rate', 'gap', 'burst', 'backlog',
    'max_bytes', 'sla', 'paused', 'held', 'tat', 'rated', 'last_gap', 'debt', 'resolve_turn', 'plan_looked_up', 'plan_deployed',
  },
  {},
  { 'period' },
}
for index = 0, 20 do
  local names = GROUPS[3]
  names[index + 2], names[index + 23] = 'ended:' .. index, 'before:' .. index -- lib/user_periods.lua
end
for half = 0, 1 do
  local names = GROUPS[2]
  names[#names + 1] = 'recent:' .. half
  for bucket = 0, 15 do names[#names + 1] = 'recent:' .. half .. ':' .. bucket end
end

-- In the first part of each record. Without a value `mean` and `since` are stored as 0, and `tag` as the lowest number.
local IN_EACH = {
  tag = true, ['ready:3'] = true, run = true, expected = true, start = true, over = true, credit = true, counted = true, came = true,
  started = true, finished = true, busy = true, waited = true, mean = true, since = true, hour = true,
}
local FIRST_PART, FIRST_SIZE = '<ddddddddddddddddddd', 152
local TEXTS, NUMBER = records.TEXTS, 8 -- bytes of a number

local BITS = {} -- by field: the number of its group, and what its bit counts
for group = 1, 3 do
  local bit_value = 1
  for at = 1, #GROUPS[group] do
    BITS[GROUPS[group][at]], bit_value = { group = group, value = bit_value }, bit_value * 2
  end
end

-- The other fields of records with these three numbers: `names` in their order, and `has`, the set of them.
local KEPT = 500
local layouts, number_of_layouts = {}, 0 -- by the third number, then by the second one, then by the first one
local function layout_of(first, second, third)
  local of_third = layouts[third]
  local of_second = of_third and of_third[second]
  if of_second and of_second[first] then return of_second[first] end
  local names, has = {}, {}
  for group, mask in ipairs({ first, second, third }) do
    for _, name in ipairs(GROUPS[group]) do
      if mask % 2 == 1 then
        names[#names + 1], has[name] = name, true
      end
      mask = math.floor(mask / 2)
    end
    if mask > 0 then return nil end -- a field that this version does not know
  end
  local layout = { first = first, second = second, third = third, names = names, has = has, size = #names, format = '<' .. string.rep('d', #names) }
  if number_of_layouts >= KEPT then layouts, number_of_layouts = {}, 0 end
  layouts[third] = layouts[third] or {}
  layouts[third][second] = layouts[third][second] or {}
  layouts[third][second][first], number_of_layouts = layout, number_of_layouts + 1
  return layout
end

local NEVER_SERVED = -1 / 0
local function is_number(value) return value > -1e24 and value < 1e24 end -- as `numbers.read`
local function is_mask(number) return number >= 0 and number < 2 ^ 53 and number % 1 == 0 end

local function read_others(user, text, layout)
  local texts_at, names = FIRST_SIZE + NUMBER * layout.size, layout.names
  if layout.size > 0 then
    local values = { struct.unpack(layout.format, text, FIRST_SIZE + 1) }
    for i = 1, layout.size do
      if is_number(values[i]) then user[names[i]] = values[i] end
    end
  end
  if #text == texts_at then return end
  local fields = lists.unpack(string.sub(text, texts_at + 1))
  for i = 1, #fields - 1, 2 do
    if TEXTS[fields[i]] then user[fields[i]] = fields[i + 1] end
  end
end

-- A user with this record; nil if the text is none. Without a text a new user.
function user_record.read(name, key, text)
  local tag, ready, run, expected, start, over, credit, counted, came = NEVER_SERVED, 0, 0, 0, 0, 0, 0, 0, 0 -- never served: before everyone
  local started, finished, busy, waited, mean, since, hour, first, second, third = 0, 0, 0, 0, 0, 0, 0, 0, 0, 0
  if text then
    if #text < FIRST_SIZE then return nil end
    tag, ready, run, expected, start, over, credit, counted, came, started, finished, busy, waited, mean, since, hour, first, second, third =
      struct.unpack(FIRST_PART, text)
    local sum = ready + run + expected + start + over + credit + counted + came + started + finished + busy + waited + mean + since + hour
    if not (is_number(sum) and (tag == NEVER_SERVED or is_number(tag))) then return nil end
  end
  local layout = is_mask(first) and is_mask(second) and is_mask(third) and layout_of(first, second, third)
  if not layout or text and #text < FIRST_SIZE + NUMBER * layout.size then return nil end
  local user = { -- written out at its full size: a table that grows field by field is moved six times
    name = name, entry = name, key = key, windows = {}, changed = {}, text = text, layout = layout, weight = 1, tag = tag, ready = ready,
    ['ready:3'] = ready, ['ready:0'] = 0, ['ready:7'] = 0, ['ready:1'] = 0, ['ready:2'] = 0, ['ready:4'] = 0, ['ready:5'] = 0, ['ready:6'] = 0,
    sched = 0, deferred = 0, limited = 0, parked = 0, parked_urgent = 0, bytes = 0, dead = 0, result_bytes = 0, failed = 0, companions = 0,
    run = run, expected = expected, start = start, over = over, credit = credit, counted = counted, came = came, started = started, finished = finished,
    busy = busy, waited = waited, mean = mean > 0 and mean or nil, since = since > 0 and since or nil, hour = hour > 0 and hour or nil,
    ring_owner = false, was_ring_owner = false, is_new = not text, was_served = false, was_idle = false, is_other = false, was_tag = 0,
  }
  if layout.size > 0 or text and #text > FIRST_SIZE then
    read_others(user, text, layout)
    user.ready = ready + user['ready:1'] + user['ready:2'] + user['ready:4'] + user['ready:5'] + user['ready:6']
    if user.weight <= 0 then user.weight = 1 end
  end
  return user
end

-- The fields and their values in turns, as a hash has them.
function user_record.list(user)
  local list = {}
  local function add(field, value)
    if value and value ~= NEVER_SERVED then list[#list + 1], list[#list + 2] = field, type(value) == 'number' and string.format('%.17g', value) or value end
  end
  for field in pairs(IN_EACH) do add(field, user[field]) end
  for _, field in ipairs(user.layout.names) do add(field, user[field]) end
  for field in pairs(TEXTS) do add(field, user[field]) end
  return list
end

-- The layout for the other fields of this user that have a value.
local function least_layout(user)
  local masks = { 0, 0, 0 }
  for name, bit in pairs(BITS) do
    local value = user[name]
    if value ~= nil and value ~= (name == 'weight' and 1 or 0) then masks[bit.group] = masks[bit.group] + bit.value end
  end
  return layout_of(masks[1], masks[2], masks[3])
end

-- The layout with the changed fields too. The changes are forgotten.
local function layout_with_changes(user)
  local layout, changed = user.layout, user.changed
  local has, masks = layout.has, nil
  for field in pairs(changed) do
    changed[field] = nil -- not a new table, which would grow again with each field
    local bit = not IN_EACH[field] and not has[field] and user[field] ~= nil and BITS[field]
    if bit then
      masks = masks or { layout.first, layout.second, layout.third }
      masks[bit.group] = masks[bit.group] + bit.value
    end
  end
  return masks and layout_of(masks[1], masks[2], masks[3]) or layout
end

local function values_of(layout, user)
  local names, values = layout.names, {}
  for i = 1, layout.size do
    local value = user[names[i]]
    if value == nil then return nil end
    values[i] = value
  end
  return values
end

-- The record as a text. Its changes are forgotten.
function user_record.pack(user)
  local layout = layout_with_changes(user)
  local values = layout.size > 0 and values_of(layout, user)
  if layout.size > 0 and not values then
    layout = least_layout(user)
    values = values_of(layout, user)
  end
  user.layout = layout
  local text = struct.pack(FIRST_PART, user.tag, user['ready:3'], user.run, user.expected, user.start, user.over, user.credit, user.counted, user.came,
    user.started, user.finished, user.busy, user.waited, user.mean or 0, user.since or 0, user.hour or 0, layout.first, layout.second, layout.third)
  if values and values[1] then text = text .. struct.pack(layout.format, unpack(values)) end
  if not (user.group or user.plan or user.explicit or user.pause_note) then return text end
  local texts = {}
  for field in pairs(TEXTS) do
    if user[field] then texts[#texts + 1], texts[#texts + 2] = field, user[field] end
  end
  return text .. lists.pack(texts)
end
