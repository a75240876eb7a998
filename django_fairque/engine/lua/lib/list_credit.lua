-- Serve a list of users (`--users`) independently of the order of the ring. Used by lib/selection.lua and
-- lib/turns.lua.
--
-- A worker with a list of users serves them independently of the ring's order. No user may lose a turn because of this,
-- neither other users nor those of the list. So the virtual time does not move, and the cost of the list's tasks
-- (`credit`, kept for each user and organization) is subtracted from the tags again: the amount that all users of the
-- list that can be served have received, so that their order among each other stays.
--
-- include options counters records ring

local list_credit = {}

-- Return the state of one list: `ring_owners`, the owners of its users' rings, and `has_come`: for each ring owner and
-- user, whether the user has entered the ring since its last turn.
function list_credit.new() return { ring_owners = {}, has_come = {} } end

function list_credit.note(credit, one, place)
  local ring_owner, has_come = one.ring_owner, credit.has_come
  if not has_come[ring_owner] then
    has_come[ring_owner] = {}
    credit.ring_owners[#credit.ring_owners + 1] = ring_owner
  end
  -- With several shards, each user that returns to the ring is placed `margin` before its tag. Here this margin has no
  -- effect, and it is kept.
  local margin = options.is_spread and ring_owner == counters.shard and one.came == 0 and place < one.tag and ring.arrival_step(one.tag) / 2 or 0
  if margin > 0 then one.margin = one.margin or margin end
  has_come[ring_owner][one] = one.came > 0 or one.tag == one.was_tag and place < one.tag - 1.5 * margin
end

function list_credit.is_known(credit, one)
  local has_come = credit.has_come[one.ring_owner]
  return has_come ~= nil and has_come[one] ~= nil
end

function list_credit.has_come(credit, one) return credit.has_come[one.ring_owner][one] end

function list_credit.served(credit, one) credit.has_come[one.ring_owner][one] = false end

local function least(credit, ring_owner, value_of)
  local found
  for one, has_come in pairs(credit.has_come[ring_owner]) do
    if not has_come then found = math.min(found or math.huge, value_of(one)) end
  end
  return found
end

-- Return the lowest tag among the list's users, without users that have entered the ring since their last turn. Running
-- tasks do not count, because their expected cost is corrected when they end.
local function certain(one) return options.fair_by_tasks and one.tag or one.tag - ring.pending(one) / one.weight end
function list_credit.first(credit, ring_owner) return least(credit, ring_owner, certain) end

-- Subtract the credit that all users of the list have in common, if it is at least an eighth of an expected task. So
-- about eight records are written for a task, however long the list is. The subtraction moves no tag below the virtual
-- time.
function list_credit.take_off(credit)
  for _, ring_owner in ipairs(credit.ring_owners) do
    local all_got = least(credit, ring_owner, function(one) return math.min(one.credit, one.tag - ring_owner.vtime) end)
    if all_got and all_got >= ring.mean_cost() / 8 then
      for one, has_come in pairs(credit.has_come[ring_owner]) do
        if not has_come then
          records.add(one, 'tag', -all_got)
          records.add(one, 'credit', -all_got)
          one.was_tag = nil -- write the user's position even if it did not change, because the user was served since it entered the ring
        end
      end
    end
  end
end
