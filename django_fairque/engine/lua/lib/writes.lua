-- Buffer writes: many members of one key are written with one command. Additions are written before removals. So if
-- only a part of the writes is carried out, an entry is in two keys (which the checker repairs), and never in none.
--
-- include calls

local writes = {}

local CHUNK, attempt = calls.CHUNK, calls.attempt

-- `lists`: the buffered members, by key; `order`: these keys, in the order of their first write
local function kind_of_write(command) return { command = command, lists = {}, order = {} } end
local additions, set_additions = kind_of_write('ZADD'), kind_of_write('SADD')
local removals, set_removals = kind_of_write('ZREM'), kind_of_write('SREM')
local KINDS = { additions, set_additions, removals, set_removals }
local function begin_list(kind, key)
  local list, order = { nil, nil }, kind.order -- Lua reserves space for one score and member, so that the table is not enlarged for the first one
  kind.lists[key], order[#order + 1] = list, key
  return list
end
function writes.added_to(key) return additions.lists[key] or begin_list(additions, key) end
function writes.zadd(key, score, member)
  local list = additions.lists[key] or begin_list(additions, key)
  local n = #list
  list[n + 1], list[n + 2] = score, member
end
function writes.zrem(key, member)
  local list = removals.lists[key] or begin_list(removals, key)
  list[#list + 1] = member
end
function writes.sadd(key, member)
  local list = set_additions.lists[key] or begin_list(set_additions, key)
  list[#list + 1] = member
end
function writes.srem(key, member)
  local list = set_removals.lists[key] or begin_list(set_removals, key)
  list[#list + 1] = member
end
-- Return whether a key belongs to one user, organization or task, and not to the whole shard or to a worker.
local function is_of_one(key)
  local kind = string.match(key, '^(%l+):', #P + 1)
  return kind and kind ~= 'state' and kind ~= 'leases'
end
local function forget_writes(kind) kind.lists, kind.order = {}, {} end
local function flush_kind(kind)
  local command, lists, order = kind.command, kind.lists, kind.order
  for i = 1, #order do
    local key = order[i]
    local list = lists[key]
    for first = 1, #list, CHUNK do
      local last = math.min(first + CHUNK - 1, #list)
      if not attempt(command, key, unpack(list, first, last)) and not is_of_one(key) then
        redis.call(command, key, unpack(list, first, last)) -- raises the error again
      end
    end
  end
  for i = #order, 1, -1 do lists[order[i]], order[i] = nil, nil end -- emptied only after all lists are written, because a write can fail
end
function writes.flush()
  for _, kind in ipairs(KINDS) do
    if kind.order[1] then flush_kind(kind) end
  end
end
each_call(function()
  for _, kind in ipairs(KINDS) do
    if kind.order[1] then forget_writes(kind) end -- a call that failed may have left this
  end
end)
