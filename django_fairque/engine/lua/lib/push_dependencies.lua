-- The dependencies of pushed tasks: read what they wait for, decide which of them wait, write both directions of each edge. Used by
-- push, deliver and fire.

local remotes -- dependencies on other shards, by id; set for each graph, and not read without one

-- Find the dependencies that block an accepted task, by their present states. Returns a refusal or nil, and the index
-- of the next argument.
local function read_dependencies(at)
  remotes = {}
  for _ = 1, tonumber(ARGV[at]) do
    remotes[ARGV[at + 1]] = { shard = ARGV[at + 2] }
    at = at + 2
  end
  at = at + 1
  local states = {}
  local function state_of(id)
    if states[id] == nil and remotes[id] then
      local mirror = read_mirror(id)
      remotes[id].is_known = mirror and true
      states[id] = mirror and mirror.state or 'open'
    elseif states[id] == nil then
      states[id] = attempt('HGET', task_key(id), 'state')
      if not states[id] then
        local task = read_task(id)
        states[id] = task and task.state or is_posted and 'finished' -- known when it was posted
      end
    end
    return states[id]
  end
  local lists = tonumber(ARGV[at])
  at = at + 1
  for _ = 1, lists do
    local item, policy, size = items[tonumber(ARGV[at])], ARGV[at + 1], tonumber(ARGV[at + 2])
    if codes[item.index] == 1 and item.owner then
      item.policy, item.blockers, item.parents = policy, {}, {}
      local known = {}
      for i = 1, size do
        local id = alias[ARGV[at + 2 + i]]
        if id then item.is_redirected = true else id = ARGV[at + 2 + i] end
        if not known[id] then
          known[id] = true
          item.parents[#item.parents + 1] = id
          local new = accepted_by_id[id]
          local state = not new and state_of(id)
          if not new and not state then return { 'missing', tostring(item.index), id } end
          if new or not is_ended(state) or (state == 'failed' and policy == 'wait') then
            item.blockers[#item.blockers + 1] = id
            if new then new.waited = true end
          elseif policy ~= 'run' and state ~= 'finished' then
            item.dropped = 'dependency ' .. id .. (state == 'failed' and ' has failed' or ' was canceled')
          end
        end
      end
    end
    at = at + 3 + size
  end
  return nil, at
end

-- The caller knows of no cycle by the ids that it says. One can close through a task that was known under another id already
-- (maybe that of its own dependent), and outside this call through an id that lives again: it had ended, and tasks wait for it.
local function find_cycle(limit)
  local function blockers_of(id)
    local item = accepted_by_id[id]
    if item then return item.blockers or {} end
    return redis.call('SMEMBERS', blocked_key(id))
  end
  for _, item in ipairs(accepted) do
    local lives_again = item.blockers and item.before and redis.call('EXISTS', waiting_key(item.id)) == 1
    if item.blockers and (item.is_redirected or lives_again) then
      local came_from, stack, looked = {}, { item.id }, 0
      while #stack > 0 do
        local id = table.remove(stack)
        for _, blocker in ipairs(blockers_of(id)) do
          if blocker == item.id then
            local path = { item.id }
            while id ~= item.id do
              table.insert(path, 2, id)
              id = came_from[id]
            end
            path[#path + 1] = item.id
            return { 'cycle', unpack(path) }
          end
          if not came_from[blocker] then
            came_from[blocker] = id
            stack[#stack + 1] = blocker
          end
          looked = looked + 1
          if looked > limit then return { 'size', item.id } end
        end
      end
    end
  end
  return nil
end

local touch_dependencies, write_edges
do

local function check_set(key)
  local size = attempt('SCARD', key)
  if not size then refuse_damaged(key) end
  return size
end

-- For each task on which accepted tasks depend: how many dependents it had before, how many are new, and which of these
-- belong to users with few deferred tasks. For each user: how many deferred tasks are new. Set for each graph, and not
-- read without one.
local sizes, added, of_few, deferred

local function slice() return math.min(sweep_limit, MOST_RESOLVED) end

-- A user has few deferred tasks if they fit into one slice.
local function note_first(item)
  local user = item.owner
  deferred[user.name] = (deferred[user.name] or 0) + 1
  local is_of_few = user.deferred + deferred[user.name] <= slice()
  for _, id in ipairs(item.blockers) do
    added[id] = (added[id] or 0) + 1
    if is_of_few then
      of_few[id] = of_few[id] or {}
      of_few[id][#of_few[id] + 1] = item.id
    end
  end
end

-- A task with a slice of dependents or fewer needs no set of those that are resolved first.
local function write_first()
  for id, size in pairs(added) do
    if sizes[id] + size > slice() then
      if sizes[id] > 0 and sizes[id] <= slice() then
        for _, dependent in ipairs(redis.call('SMEMBERS', waiting_key(id))) do sadd(first_key(id), dependent) end
      end
      for _, dependent in ipairs(of_few[id] or {}) do sadd(first_key(id), dependent) end
    end
  end
end

function touch_dependencies(run, is_graph)
  if is_graph then sizes, added, of_few, deferred = {}, {}, {}, {} end
  if run ~= '' then check_set(run_key(run)) end
  for _, item in ipairs(accepted) do
    if item.before and item.before.waited and redis.call('EXISTS', waiting_key(item.id), watchers_key(item.id)) > 0 then
      item.waited = true
    end
    if item.before and item.before.raw.run then touch(run_key(item.before.raw.run)) end
    if item.dropped then touch(history_key(item.id)) end
    if item.blockers and not item.dropped and #item.blockers > 0 then
      item.is_blocked = true
      check_set(blocked_key(item.id))
      for _, id in ipairs(item.blockers) do
        sizes[id] = check_set(waiting_key(id))
        touch(reacting_key(id))
        touch(first_key(id))
        if remotes[id] then touch(remote_key(id)) end
      end
    end
  end
end

local function write_edges_of(item)
  note_first(item)
  for _, id in ipairs(item.blockers) do
    sadd(blocked_key(item.id), id)
    sadd(waiting_key(id), item.id)
    if item.policy ~= 'wait' then sadd(reacting_key(id), item.id) end
    local remote = remotes[id]
    if remote and not remote.is_known then
      remote.is_known = true
      redis.call('HSET', remote_key(id), 'state', 'open', 'shard', remote.shard)
      watch({ id = id, shard = remote.shard })
    elseif not remote and not accepted_by_id[id] then
      redis.call('HSET', task_key(id), 'waited', '1')
    end
  end
  count('edges', #item.blockers)
end

function write_edges()
  for _, item in ipairs(accepted) do
    if item.is_blocked then write_edges_of(item) end
  end
  write_first()
  flush()
end

end
