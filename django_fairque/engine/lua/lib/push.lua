-- The tasks of a push, and what is decided about them. Used by lib/push_decide.lua, push_dependencies.lua and push_write.lua.

local push = {}

push.ITEMS, push.STRIDE = 5, 4 -- where the tasks begin, behind `at` as in `push_write.accept`; arguments of one

push.others, push.moved, push.alias, push.uniques = {}, {}, {}, {} -- code that adds to `moved` or `alias` adds to `others` too

-- Begin a push without tasks. `delivered`, by id: the marks of an outbox's tasks that were delivered before, or nil.
function push.begin(is_posted, delivered)
  push.items, push.codes, push.accepted, push.accepted_by_id = { nil }, { nil }, { nil }, {} -- with room for one task
  if push.others[1] then push.others, push.moved, push.alias = {}, {}, {} end
  if next(push.uniques) then push.uniques = {} end
  push.is_posted, push.delivered = is_posted, delivered
  push.replaced, push.is_replaced = {}, {} -- the tasks that newer ones of the same limit replace
end

function push.is_ended(state) return state == 'finished' or state == 'failed' or state == 'canceled' end

-- The bytes that a task counts against its user's limit: its payload, and an estimate for its record and its places.
function push.size_of(item)
  local TASK_OVERHEAD = 500
  return #ARGV[item.at + 2] + TASK_OVERHEAD
end
