-- The dependencies of pushed tasks: read their states, decide which tasks must wait, and write both directions of each
-- edge. Used by push, deliver and fire.
--
-- include calls keys options counters slot writes task_record runs mirrors edges push

local push_dependencies = {}

local remotes -- by id: dependencies on other shards; set and read only for a graph

-- Find the dependencies that block accepted tasks, by their present states. Returns a refusal or nil, and the index of
-- the next argument.
function push_dependencies.read(at)
  remotes = {}
  for _ = 1, tonumber(ARGV[at]) do
    remotes[ARGV[at + 1]] = { shard = ARGV[at + 2] }
    at = at + 2
  end
  at = at + 1
  local states = {}
  local function state_of(id)
    if states[id] == nil and remotes[id] then
      local mirror = mirrors.read(id)
      remotes[id].is_known = mirror and true
      states[id] = mirror and mirror.state or 'open'
    elseif states[id] == nil then
      states[id] = calls.attempt('HGET', keys.task(id), 'state')
      if not states[id] then
        local task = task_record.read(id)
        states[id] = task and task.state or push.is_posted and 'finished' -- the task was known when this part was posted
      end
    end
    return states[id]
  end
  local lists = tonumber(ARGV[at])
  at = at + 1
  for _ = 1, lists do
    local item, policy, size = push.items[tonumber(ARGV[at])], ARGV[at + 1], tonumber(ARGV[at + 2])
    if push.codes[item.index] == 1 and item.owner then
      item.policy, item.blockers, item.parents = policy, {}, {}
      local known = {}
      for i = 1, size do
        local id = push.alias[ARGV[at + 2 + i]]
        if id then item.is_redirected = true else id = ARGV[at + 2 + i] end
        if not known[id] then
          known[id] = true
          item.parents[#item.parents + 1] = id
          local new = push.accepted_by_id[id]
          local state = not new and state_of(id)
          if not new and not state then return { 'missing', tostring(item.index), id } end
          if new or not push.is_ended(state) or (state == 'failed' and policy == 'wait') then
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

-- Find a cycle among the accepted tasks. The caller has checked the ids that it names. But a cycle can close through a
-- task that is already known under another id, or through an ended task whose id is used again while other tasks wait
-- for it.
function push_dependencies.find_cycle(limit)
  local function blockers_of(id)
    local item = push.accepted_by_id[id]
    if item then return item.blockers or {} end
    return redis.call('SMEMBERS', keys.blocked(id))
  end
  for _, item in ipairs(push.accepted) do
    local lives_again = item.blockers and item.before and redis.call('EXISTS', keys.waiting(item.id)) == 1
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

local function check_set(key)
  local size = calls.attempt('SCARD', key)
  if not size then calls.refuse_damaged(key) end
  return size
end

-- `sizes`, `added`, `of_few`: for each task on which accepted tasks depend, the number of its dependents before, the
-- number of new ones, and the new ones of users with few deferred tasks. `deferred`: for each user, the number of new
-- deferred tasks. All are set and read only for a graph.
local sizes, added, of_few, deferred

local function slice() return math.min(options.sweep_limit, edges.MOST_RESOLVED) end

-- Note the dependents that are resolved first: those of users whose deferred tasks fit into one slice.
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

-- Write, for each task with more than one slice of dependents, the set of the dependents that are resolved before the others.
local function write_first()
  for id, size in pairs(added) do
    if sizes[id] + size > slice() then
      if sizes[id] > 0 and sizes[id] <= slice() then
        for _, dependent in ipairs(redis.call('SMEMBERS', keys.waiting(id))) do writes.sadd(keys.first(id), dependent) end
      end
      for _, dependent in ipairs(of_few[id] or {}) do writes.sadd(keys.first(id), dependent) end
    end
  end
end

local MOST_RUNS = 200
function push_dependencies.touch(run, is_graph)
  if is_graph then sizes, added, of_few, deferred = {}, {}, {}, {} end
  if run ~= '' then
    check_set(keys.run(run))
    for _, oldest in ipairs(redis.call('ZRANGE', P .. 'runs', 0, -MOST_RUNS - 1)) do writes.zrem(P .. 'runs', oldest) end
  end
  for _, item in ipairs(push.accepted) do
    if item.before and item.before.waited and redis.call('EXISTS', keys.waiting(item.id), keys.watchers(item.id)) > 0 then
      item.waited = true
    end
    if item.before and item.before.raw.run then slot.touch(keys.run(item.before.raw.run)) end
    if item.dropped then slot.touch(keys.history(item.id)) end
    if item.blockers and not item.dropped and #item.blockers > 0 then
      item.is_blocked = true
      check_set(keys.blocked(item.id))
      for _, id in ipairs(item.blockers) do
        sizes[id] = check_set(keys.waiting(id))
        slot.touch(keys.reacting(id))
        slot.touch(keys.first(id))
        if remotes[id] then slot.touch(keys.remote(id)) end
      end
    end
  end
end

local function write_edges_of(item)
  note_first(item)
  for _, id in ipairs(item.blockers) do
    writes.sadd(keys.blocked(item.id), id)
    writes.sadd(keys.waiting(id), item.id)
    if item.policy ~= 'wait' then writes.sadd(keys.reacting(id), item.id) end
    local remote = remotes[id]
    if remote and not remote.is_known then
      remote.is_known = true
      redis.call('HSET', keys.remote(id), 'state', 'open', 'shard', remote.shard)
      mirrors.watch({ id = id, shard = remote.shard })
    elseif not remote and not push.accepted_by_id[id] then
      redis.call('HSET', keys.task(id), 'waited', '1')
      runs.forget(keys.task(id))
    end
  end
  counters.count('edges', #item.blockers)
end

function push_dependencies.write_edges()
  for _, item in ipairs(push.accepted) do
    if item.is_blocked then write_edges_of(item) end
  end
  write_first()
  writes.flush()
end
