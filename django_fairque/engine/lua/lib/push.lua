-- The tasks of a push, and the decisions about them. Used by lib/push_decide.lua, push_dependencies.lua and
-- push_write.lua.

local push = {}

push.ITEMS, push.STRIDE = 5, 4 -- the index of the first task, counted from `at` in `push_write.accept`, and the number of arguments of a task

push.others, push.moved, push.alias, push.uniques = {}, {}, {}, {} -- code that adds to `moved` or `alias` adds to `others` too

-- Begin a push without tasks. `delivered` is nil, or has by id the marks of an outbox's tasks that were delivered
-- before.
function push.begin(is_posted, delivered)
  push.items, push.codes, push.accepted, push.accepted_by_id = { nil }, { nil }, { nil }, {} -- tables with room for one task
  if push.others[1] then push.others, push.moved, push.alias = {}, {}, {} end
  if next(push.uniques) then push.uniques = {} end
  push.is_posted, push.delivered = is_posted, delivered
  push.replaced, push.is_replaced = {}, {} -- the tasks that newer tasks of the same limit replace
end

function push.is_ended(state) return state == 'finished' or state == 'failed' or state == 'canceled' end

-- Return the bytes that a task counts against its user's limit: its payload, and an estimate for its record and index
-- entries.
function push.size_of(item)
  local TASK_OVERHEAD = 500
  return #ARGV[item.at + 2] + TASK_OVERHEAD
end
