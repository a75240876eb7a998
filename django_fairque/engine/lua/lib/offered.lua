-- What a call offers: its tasks as they come, and what each of them is to the queue by what is known already. Nothing is
-- written here.

local STRIDE = 14
local POLICY_WAIT, POLICY_RUN = 'wait', 'run'

local items, codes, others, accepted, moved
local accepted_by_id, alias, seen, uniques, pending, delivered, remotes, is_posted
each_call(function()
  items, codes, others, accepted, moved = {}, {}, {}, {}, {}
  accepted_by_id, alias, seen, uniques, pending, delivered = {}, {}, {}, {}, {}, {}
  remotes, is_posted = {}, false
end)

local function is_ended(state) return state == 'finished' or state == 'failed' or state == 'canceled' end

local function is_duplicate(item, some_exist)
  if seen[item.id] then return true end
  seen[item.id] = true
  if delivered[item.id] then -- by an earlier call of deliver.lua
    item.is_repeat = true
    return true
  end
  if not some_exist then return false end
  local t = read_task(item.id)
  if not t then return false end
  if ARGV[item.at + 5] ~= '1' then
    item.is_repeat = true
    return true
  end
  if not is_ended(t.state) then return true end
  -- Ended: the id is free again and what is kept of the old task goes; but not while its dependents are being told.
  if t.raw.waited and redis.call('ZSCORE', K.resolving, t.id) then return true end
  item.before = t
  return false
end

-- The task under which this work is known already, if its window is still open and the task was not canceled.
local function known_as(item)
  local digest = ARGV[item.at + 11]
  if digest == '' then return nil end
  local stored = uniques[digest]
  if not stored then
    local value = redis.call('GET', unique_key(digest))
    stored = value and unpack_list(value)
  end
  local until_moment = stored and tonumber(stored[2])
  if not stored or until_moment <= now then return nil end
  local earlier = accepted_by_id[stored[1]]
  local t = not earlier and read_task(stored[1])
  if not earlier and (not t or t.state == 'canceled') then return nil end
  if ARGV[item.at + 13] ~= '' then -- debounce: the last one counts, if the first has not begun
    if earlier then
      earlier.payload, earlier.last = ARGV[item.at + 4], item
    elseif t.state == 'scheduled' then
      item.moves = stored[1]
    else
      return nil
    end
  end
  return stored[1]
end

-- The list or set that a user's task may go to: once a call, however many of the user's tasks go there.
local function touch_lane(u, is_critical)
  local lane = is_critical and 'touched_critical' or 'touched_normal'
  if u[lane] then return end
  u[lane] = true
  touch(is_critical and critical_key(u.name) or normal_key(u.name))
end

local function decide(item, some_exist)
  local u = load_user(item.user)
  local waiting = u.ready + u.sched + u.deferred + (pending[u] or 0)
  local limit = u.backlog or (max_backlog > 0 and max_backlog)
  if is_duplicate(item, some_exist) then return item.is_repeat and 1 or 2 end
  local other, code = known_as(item), 1
  if other then
    code = 2
    alias[item.id] = other
    others[#others + 1] = tostring(item.index)
    others[#others + 1] = other
    if item.moves then moved[#moved + 1] = item end
  elseif limit and waiting >= limit and not is_posted then
    return 3
  else
    item.u = u
    pending[u] = (pending[u] or 0) + 1
    accepted[#accepted + 1] = item
    accepted_by_id[item.id] = item
    touch_lane(u, ARGV[item.at + 3] == '6')
  end
  local digest = ARGV[item.at + 11]
  if digest ~= '' then
    touch(unique_key(digest))
    local window = tonumber(ARGV[item.at + 12]) or tonumber(ARGV[item.at + 13]) or 0
    if code == 1 or item.moves then uniques[digest] = { other or item.id, exact(now + window), window } end
  end
  return code
end

local function read_items(at, size)
  local keys = {}
  for i = 1, size do
    local first = at + (i - 1) * STRIDE
    local item = { index = i, id = ARGV[first], user = ARGV[first + 1], at = first, u = false, created = 0 }
    items[i] = item
    keys[2 * i - 1], keys[2 * i] = task_key(item.id), payload_key(item.id)
  end
  local some_exist = false
  for first = 1, #keys, CHUNK do
    some_exist = redis.call('EXISTS', unpack(keys, first, math.min(first + CHUNK - 1, #keys))) > 0 or some_exist
  end
  for _, item in ipairs(items) do codes[item.index] = decide(item, some_exist) end
end
