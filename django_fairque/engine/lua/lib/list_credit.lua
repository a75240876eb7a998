-- Those of a list who can be served, beside the ring's order.
--
-- A list serves out of turn, which is to cost nobody a turn, neither others nor those of the list. So the virtual time stays, and
-- what a list's tasks have taken (`beside`, of each who stands in a ring) is taken off the tags again: as much of it as all
-- who can be served of the list have got, so that their order among each other stays.

local beside = { floors = {} } -- `floors`: whose rings they stand in
do

local some -- by floor: each of them, and whether it has come since its last turn

function beside.clear() some, beside.floors = {}, emptied(beside.floors) end

function beside.note(one, position)
  local floor = one.floor
  if not some[floor] then
    some[floor] = {}
    beside.floors[#beside.floors + 1] = floor
  end
  -- Where the queue has other shards, all who come back stand a hair before their tags: that says nothing here, and stays.
  local hair = is_spread and floor == stat and position < one.tag and step_at(one.tag) / 2 or 0
  if hair > 0 then one.hair = one.hair or hair end
  some[floor][one] = one.tag == one.was_tag and position < one.tag - 1.5 * hair
end

function beside.has_come(one) return some[one.floor][one] end

function beside.served(one) some[one.floor][one] = false end

local function least(floor, value_of)
  local found
  for one, has_come in pairs(some[floor]) do
    if not has_come then found = math.min(found or math.huge, value_of(one)) end
  end
  return found
end

-- Where the first of them is, of those that have not come since. What runs is taken off again when it ends.
local function certain(one) return fair_by_tasks and one.tag or one.tag - pending(one) / one.weight end
function beside.first(floor) return least(floor, certain) end

-- An eighth of an expected task at once, or more: so that it writes some eight records a task, however long the list is. Not more
-- than brings the first of them to the virtual time.
function beside.take_off()
  for _, floor in ipairs(beside.floors) do
    local all_got = least(floor, function(one) return math.min(one.beside, one.tag - floor.vtime) end)
    if all_got and all_got >= credit() / 8 then
      for one, has_come in pairs(some[floor]) do
        if not has_come then
          add(one, 'tag', -all_got)
          add(one, 'beside', -all_got)
          one.was_tag = nil -- its place is written, though it may be what it was: it has been served since it came
        end
      end
    end
  end
end

end
