-- The stored form of a user's record: one string, with eight bytes for each number. Reading and writing records is a
-- third of the work of a user's turn, so a call reads the records of all its users with one command, and writes them
-- with one command.
--
-- First come the numbers that most records have, then three numbers that determine which other fields follow (bit n of
-- the first number stands for field n of the first group below), then these fields, and then the packed texts.
-- engine/scripting/user_record.py reads the same form. A new field is added at the end of a group, so that older
-- records stay valid. A group has at most 44 fields.
--
-- include lists records

local user_record = {}

local GROUPS = {
  {
    'ready:0', 'ready:1', 'ready:2', 'ready:4', 'ready:5', 'ready:6', 'ready:7', 'sched', 'deferred', 'limited', 'parked', 'parked_urgent',
    'bytes', 'dead', 'result_bytes', 'failed', 'companions', 'urgent_tag', 'lane_turn', 'weight', 'cap', 'rate', 'gap', 'burst', 'backlog',
    'max_bytes', 'sla', 'paused', 'held', 'tat', 'rated', 'last_gap', 'debt', 'resolve_turn', 'plan_looked_up', 'plan_deployed',
  },
  {}, -- the fields of lib/recent_usage.lua
  { 'period' }, -- the fields of lib/user_periods.lua
}
for half = 0, 1 do
  local names = GROUPS[2]
  names[#names + 1] = 'recent:' .. half
  for bucket = 0, 15 do names[#names + 1] = 'recent:' .. half .. ':' .. bucket end
end
for index = 0, 20 do
  local names = GROUPS[3]
  names[index + 2], names[index + 23] = 'ended:' .. index, 'before:' .. index
end

-- The first part of each record has the fields that `user_record.read` names. Without a value, `mean` and `since` are
-- stored as 0, and `tag` as the lowest number.
local FIRST_PART, FIRST_SIZE = '<ddddddddddddddddddd', 152
local TEXTS, NUMBER = records.TEXTS, 8 -- the number of bytes that a number takes

-- Each of the three groups of fields is divided into two parts; the second begins after this many fields. The lists of fields of
-- parts are kept in memory (`part_of`) and not those of whole records, because there are far more different records than parts.
local FIRST_HALF, PARTS = { 22, 17, 22 }, 6
local BITS = {} -- by field: the number of its part, and the value of its bit
for group = 1, #GROUPS do
  local bit_value = 1
  for at = 1, #GROUPS[group] do
    if at == FIRST_HALF[group] + 1 then bit_value = 1 end
    BITS[GROUPS[group][at]] = { part = 2 * group - (at > FIRST_HALF[group] and 0 or 1), value = bit_value }
    bit_value = bit_value * 2
  end
end

-- Return the fields of a part whose bits are set in the mask: `names` in their order, and `has`, the set of them.
local KEPT = 2000
local parts, number_of_parts = { {}, {}, {}, {}, {}, {} }, 0 -- the parts that were built before, by their number and mask
local function part_of(number, mask)
  local part = parts[number][mask]
  if part then return part end
  local index, names, has, rest = math.ceil(number / 2), {}, {}, mask
  local group, half, is_first = GROUPS[index], FIRST_HALF[index], number % 2 == 1
  for at = is_first and 1 or half + 1, is_first and math.min(half, #group) or #group do
    if rest % 2 == 1 then
      names[#names + 1], has[group[at]] = group[at], true
    end
    rest = math.floor(rest / 2)
  end
  if rest > 0 then return nil end -- the mask has a field that this release does not know
  if number_of_parts >= KEPT then parts, number_of_parts = { {}, {}, {}, {}, {}, {} }, 0 end
  part = { mask = mask, names = names, has = has, size = #names }
  parts[number][mask], number_of_parts = part, number_of_parts + 1
  return part
end

local function is_mask(number) return number >= 0 and number < 2 ^ 44 and number % 1 == 0 end

-- Return the parts of a record with these three numbers, and the number of their fields; nil if the numbers are not
-- valid.
local HALF_1, HALF_2, HALF_3 = 2 ^ 22, 2 ^ 17, 2 ^ 22 -- by group: the value of the first bit of the second part
local NO_FIELDS = { mask = 0, names = {}, has = {}, size = 0 }
local function layout_of(first, second, third)
  if first == 0 and second == 0 and third == 0 then -- new users, and most users that wait for their first task
    return { NO_FIELDS, NO_FIELDS, NO_FIELDS, NO_FIELDS, NO_FIELDS, NO_FIELDS, size = 0, first = 0, second = 0, third = 0 }
  end
  if not (is_mask(first) and is_mask(second) and is_mask(third)) then return nil end
  local low_1, low_2, low_3 = first % HALF_1, second % HALF_2, third % HALF_3
  local one, two = part_of(1, low_1), part_of(2, (first - low_1) / HALF_1)
  local three, four = part_of(3, low_2), part_of(4, (second - low_2) / HALF_2)
  local five, six = part_of(5, low_3), part_of(6, (third - low_3) / HALF_3)
  if not (one and two and three and four and five and six) then return nil end
  return {
    one, two, three, four, five, six, size = one.size + two.size + three.size + four.size + five.size + six.size,
    first = first, second = second, third = third,
  }
end

local NEVER_SERVED = -1 / 0
local function is_number(value) return value > -1e24 and value < 1e24 end -- the same bounds as in `numbers.read`

-- Set the texts that follow the numbers, each with its length before it. Return whether all of them can be read.
local function read_texts(user, text, at)
  local field
  while at <= #text do
    local size, start = string.match(text, '^(%d+):()', at)
    if not size or start + size > #text + 1 then return false end
    local value = string.sub(text, start, start + size - 1)
    if not field then
      field = value
    else
      if TEXTS[field] then user[field] = value end
      field = nil
    end
    at = start + size
  end
  return not field
end

local formats = {} -- by number of fields
local function format_of(size)
  formats[size] = formats[size] or '<' .. string.rep('d', size)
  return formats[size]
end

-- Set the fields that follow the first part. Return whether they can be read.
local function read_others(user, text, layout)
  if layout.size > 0 then
    local values, n = { struct.unpack(format_of(layout.size), text, FIRST_SIZE + 1) }, 0
    for part = 1, PARTS do
      local names = layout[part].names
      for i = 1, #names do
        n = n + 1
        if is_number(values[n]) then user[names[i]] = values[n] end
      end
    end
  end
  return read_texts(user, text, FIRST_SIZE + NUMBER * layout.size + 1)
end

-- Return an empty table with room for the fields that most calls change. A table that grows field by field is moved
-- five times.
local function room_for_changes()
  return {
    tag = nil, ready = nil, ['ready:3'] = nil, run = nil, expected = nil, start = nil, came = nil, credit = nil, counted = nil, started = nil, finished = nil,
    busy = nil, waited = nil, mean = nil, since = nil, hour = nil,
  }
end

-- Return a user with this record; nil if the text is not a record. Without a text, return a new user.
function user_record.read(name, key, text)
  local tag, ready, run, expected, start, over, credit, counted, came = NEVER_SERVED, 0, 0, 0, 0, 0, 0, 0, 0 -- a tag of minus infinity: the user was never served, so it is before all others
  local started, finished, busy, waited, mean, since, hour, first, second, third = 0, 0, 0, 0, 0, 0, 0, 0, 0, 0
  if text then
    if #text < FIRST_SIZE then return nil end
    tag, ready, run, expected, start, over, credit, counted, came, started, finished, busy, waited, mean, since, hour, first, second, third =
      struct.unpack(FIRST_PART, text)
    local sum = ready + run + expected + start + over + credit + counted + came + started + finished + busy + waited + mean + since + hour
    if not (is_number(sum) and (tag == NEVER_SERVED or is_number(tag))) then return nil end
  end
  local layout = layout_of(first, second, third)
  if not layout or text and #text < FIRST_SIZE + NUMBER * layout.size then return nil end
  local user = { -- all fields are named here, because a table that grows field by field is moved six times
    name = name, entry = name, key = key, windows = {}, changed = room_for_changes(), text = text, layout = layout, weight = 1, tag = tag, ready = ready,
    ['ready:3'] = ready, ['ready:0'] = 0, ['ready:7'] = 0, ['ready:1'] = 0, ['ready:2'] = 0, ['ready:4'] = 0, ['ready:5'] = 0, ['ready:6'] = 0,
    sched = 0, deferred = 0, limited = 0, parked = 0, parked_urgent = 0, bytes = 0, dead = 0, result_bytes = 0, failed = 0, companions = 0,
    run = run, expected = expected, start = start, over = over, credit = credit, counted = counted, came = came, started = started, finished = finished,
    busy = busy, waited = waited, mean = mean > 0 and mean or nil, since = since > 0 and since or nil, hour = hour > 0 and hour or nil,
    ring_owner = false, was_ring_owner = false, is_new = not text, was_served = false, was_idle = false, is_other = false, was_tag = 0,
  }
  if layout.size > 0 or text and #text > FIRST_SIZE then
    if not read_others(user, text, layout) then return nil end
    user.ready = ready + user['ready:1'] + user['ready:2'] + user['ready:4'] + user['ready:5'] + user['ready:6']
    if user.weight <= 0 then user.weight = 1 end
  end
  return user
end

-- Set the three numbers that say which other fields follow.
local function set_masks(layout)
  layout.first, layout.second = layout[1].mask + HALF_1 * layout[2].mask, layout[3].mask + HALF_2 * layout[4].mask
  layout.third = layout[5].mask + HALF_3 * layout[6].mask
end

-- Return the layout that has only the fields of this user with a value.
local function least_layout(user)
  local masks, layout = { 0, 0, 0, 0, 0, 0 }, { size = 0 }
  for name, bit in pairs(BITS) do
    local value = user[name]
    if value ~= nil and value ~= (name == 'weight' and 1 or 0) then
      masks[bit.part], layout.size = masks[bit.part] + bit.value, layout.size + 1
    end
  end
  for part = 1, PARTS do layout[part] = part_of(part, masks[part]) end
  set_masks(layout)
  return layout
end

-- Add the changed fields to the layout, and forget the changes.
function user_record.note_changes(user)
  local layout, changed, has_grown = user.layout, user.changed, false
  for field in next, changed do
    changed[field] = nil -- clear the table and keep it: a new table would grow again with each field
    local bit = BITS[field]
    if bit then
      local part = layout[bit.part]
      if not part.has[field] and user[field] ~= nil then
        layout[bit.part], layout.size, has_grown = part_of(bit.part, part.mask + bit.value), layout.size + 1, true
      end
    end
  end
  if has_grown then set_masks(layout) end
end

-- Fill `values` with the fields of the layout. Return false if one of them has no value.
local values = {}
local function fill_values(layout, user)
  local n = 0
  for part = 1, PARTS do
    local names, size = layout[part].names, layout[part].size
    for i = 1, size do
      local value = user[names[i]]
      if value == nil then return false end
      values[n + i] = value
    end
    n = n + size
  end
  return true
end

-- Return the record as a text, and forget its changes.
function user_record.pack(user)
  if next(user.changed) then user_record.note_changes(user) end
  local layout = user.layout
  if layout.size > 0 and not fill_values(layout, user) then
    layout = least_layout(user)
    user.layout = layout
    fill_values(layout, user)
  end
  local text = struct.pack(FIRST_PART, user.tag, user['ready:3'], user.run, user.expected, user.start, user.over, user.credit, user.counted, user.came,
    user.started, user.finished, user.busy, user.waited, user.mean or 0, user.since or 0, user.hour or 0, layout.first, layout.second, layout.third)
  if layout.size > 0 then text = text .. struct.pack(format_of(layout.size), unpack(values, 1, layout.size)) end
  if not (user.group or user.plan or user.explicit or user.pause_note) then return text end
  local texts = {}
  for field in pairs(TEXTS) do
    if user[field] then texts[#texts + 1], texts[#texts + 2] = field, user[field] end
  end
  return text .. lists.pack(texts)
end
