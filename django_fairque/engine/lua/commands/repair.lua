#!lua flags=allow-oom
-- Fix what the checker found: the task's own record is what counts, indexes and counters are made to agree with it.
--
-- Each fix looks again first: what is right (by now) is left alone.
--
-- KEYS    base workers
-- ARGV    options, n (1..200), then n × (what, name, detail):
--         task id '' (its registries, queue, lease, payload); index registry id (a member without a task);
--         queue user id; lease worker id; edge blocker waiter; run run id; user id field:difference;
--         stat field difference; place user '' (ring, rate, registry of users); key name '' (payload, history or logs);
--         member organization user (does not belong there); organization id field:difference; standing organization '' (ring, registry of
--         organizations); sum field difference (of the figures of organizations);
--         result user id (whether it is among the user's results);
--         mirror id '' (of a task on another shard); watchers id '' (other shards were not notified of its end)
-- REPLY   one digit each: 0 nothing to fix, 1 fixed, 2 can't be fixed by a program
-- COST    25 commands each
-- include heads base ring organization recent_usage user bounds task dependents
counters.read_again()

local STATES = { 'scheduled', 'deferred', 'queued', 'started', 'finished', 'failed', 'canceled' }
local fix = {}

local function registry_score(task)
  if task.state == 'scheduled' then return tonumber(task.raw.due) or now end
  if task.state == 'deferred' then return task.expires or NEVER end
  if task.state == 'queued' then return queued_look(task) end
  if task.state == 'started' then return now end -- its lease is not known to last: another worker may have it
  return now + (task.state == 'failed' and failed_ttl or result_ttl)
end

local function repair_queue(task)
  local critical, normal = critical_key(task.user), normal_key(task.user)
  local wanted = task.state == 'queued' and (task.priority == 6 and 'critical' or 'normal') or ''
  local in_critical = #redis.call('LPOS', critical, task.id, 'COUNT', 0)
  local in_normal = redis.call('ZSCORE', normal, task.id)
  if in_critical > 0 and (wanted ~= 'critical' or in_critical > 1) then redis.call('LREM', critical, 0, task.id) end
  if wanted == 'critical' and in_critical ~= 1 then redis.call('RPUSH', critical, task.id) end
  if wanted == 'normal' and not (in_normal and math.floor(tonumber(in_normal) / BAND) == task.priority) then
    redis.call('ZADD', normal, exact(task.priority * BAND + math.max(0, task.ready - EPOCH)), task.id)
  elseif wanted ~= 'normal' and in_normal then
    redis.call('ZREM', normal, task.id)
  end
end

local function repair_scheduled(task, moment)
  if task.state == 'scheduled' then
    redis.call('ZADD', scheduled_key(task.user), exact(moment), task.id)
    redis.call('ZADD', K.due, 'LT', exact(moment), task.user)
  else
    redis.call('ZREM', scheduled_key(task.user), task.id)
  end
end

-- Whether there is such a task, even if its record is damaged.
local function is_known(id) return redis.call('EXISTS', task_key(id)) == 1 or read_task(id) ~= nil end

-- Whether nobody knows any more what to do with it: its payload is gone and its head with it, or only its head is left of a task that
-- had ended.
local function is_lost(id, task)
  if redis.call('EXISTS', task_key(id)) == 1 then
    return not task and redis.call('HEXISTS', task_key(id), 'user') == 0 and redis.call('EXISTS', payload_key(id)) == 0
  end
  if not task or redis.call('ZSCORE', K['state:queued'], id) then return false end
  for _, state in ipairs({ 'finished', 'failed', 'canceled' }) do
    if redis.call('ZSCORE', K['state:' .. state], id) then return true end
  end
  return false
end

local function remove_lost(id)
  local worker = redis.call('HGET', task_key(id), 'worker')
  if worker then redis.call('SREM', leases_key(worker), id) end
  for _, state in ipairs(STATES) do redis.call('ZREM', K['state:' .. state], id) end
  redis.call('DEL', task_key(id), payload_key(id), history_key(id), P .. 'logs:' .. id)
end

function fix.task(id)
  local task = read_task(id)
  if is_lost(id, task) then
    remove_lost(id)
    return 1
  end
  if not task and is_known(id) then return 2 end
  for _, state in ipairs(STATES) do
    local key = K['state:' .. state]
    local there = redis.call('ZSCORE', key, id)
    if task and task.state == state then
      if not there then redis.call('ZADD', key, exact(registry_score(task)), id) end
    elseif there then
      redis.call('ZREM', key, id)
    end
  end
  if not task then return 1 end
  if not K['state:' .. task.state] then return 2 end
  repair_queue(task)
  repair_scheduled(task, tonumber(redis.call('ZSCORE', K['state:' .. task.state], id)))
  if task.state == 'started' then redis.call('SADD', leases_key(task.worker), id) end
  redis.call('SETNX', payload_key(id), '') -- a lost payload can't be decoded: its task ends as poisoned
  if task.state == 'deferred' and redis.call('SCARD', blocked_key(id)) == 0 then
    task.owner = load_user(task.user)
    task.blockers = {}
    release(task)
  end
  look_at(now)
  return 1
end

function fix.index(registry, id)
  return not is_known(id) and redis.call('ZREM', K['state:' .. registry], id) or 0
end

function fix.queue(user_name, id)
  local task = read_task(id)
  if task and task.user == user_name then
    repair_queue(task)
    if task.state ~= 'scheduled' then redis.call('ZREM', scheduled_key(user_name), id) end
    return 1
  end
  return math.min(1, redis.call('LREM', critical_key(user_name), 0, id) + redis.call('ZREM', normal_key(user_name), id)
    + redis.call('ZREM', scheduled_key(user_name), id))
end

function fix.lease(worker, id)
  local task = read_task(id)
  local is_held = task and task.state == 'started' and task.worker == worker
  return redis.call(is_held and 'SADD' or 'SREM', leases_key(worker), id)
end

function fix.edge(blocker, waiter)
  local task, blocker_task = read_task(waiter), read_task(blocker)
  local is_open = blocker_task and blocker_task.state ~= 'finished' and blocker_task.state ~= 'canceled'
  local before = redis.call('SISMEMBER', blocked_key(waiter), blocker)
  if task and task.state == 'deferred' then -- complete the edge; an ended blocker is resolved by a later sweep
    redis.call('SADD', blocked_key(waiter), blocker)
    redis.call('SADD', waiting_key(blocker), waiter)
    if (task.raw.policy or 'wait') ~= 'wait' then redis.call('SADD', reacting_key(blocker), waiter) end
    if blocker_task then redis.call('HSET', task_key(blocker), 'waited', '1') end
    if not is_open or (blocker_task.state == 'failed' and task.raw.policy) then zadd(K.resolving, stat.resolve_turn, blocker) end
    if before == 0 then count('edges', 1) end
  else
    redis.call('SREM', blocked_key(waiter), blocker)
    redis.call('SREM', waiting_key(blocker), waiter)
    redis.call('SREM', reacting_key(blocker), waiter)
    redis.call('SREM', first_key(blocker), waiter)
    if before == 1 then count('edges', -1) end
  end
  look_at(now)
  return 1
end

function fix.mirror(id)
  local mirror = read_mirror(id)
  if mirror and redis.call('EXISTS', waiting_key(id)) == 1 then watch(mirror) else forget_mirror(id) end
  return 1
end

function fix.watchers(id)
  redis.call('HSET', task_key(id), 'watched', '1')
  zadd(K.resolving, stat.resolve_turn, id)
  look_at(now)
  return 1
end

function fix.run(run, id)
  local belongs = redis.call('HGET', task_key(id), 'run') == run
  return redis.call(belongs and 'SADD' or 'SREM', run_key(run), id)
end

function fix.user(user_name, detail)
  local field, difference = string.match(detail, '^(.*):(%-?%d+)$')
  local user = load_user(user_name)
  set(user, field, (user[field] or 0) + tonumber(difference))
  if string.sub(field, 1, 6) == 'ready:' then user.ready = user.ready + tonumber(difference) end
  return 1
end

function fix.stat(field, difference)
  count(field, tonumber(difference))
  return 1
end

fix.sum = fix.stat

local function repair_ring(one)
  local key = ring_of(one.ring_owner)
  local is_there = redis.call('ZSCORE', key, one.entry)
  if can_be_served(one) and not is_there then
    ring.join(one)
    set(one, 'tag', one.tag)
  elseif is_there and not can_be_served(one) then
    redis.call('ZREM', key, one.entry)
  elseif is_there and (tonumber(is_there) < 0) ~= (one.came > 0) then
    redis.call('ZADD', key, exact(ring.place_of(one)), one.entry)
  end
end

function fix.place(user_name)
  local user = load_user(user_name)
  if user.is_new then
    redis.call('ZREM', K.users, user_name)
    redis.call('ZREM', K.throttled, user_name)
    redis.call('ZREM', K.grouped, user_name)
    return redis.call('ZREM', K.ring, user_name)
  end
  redis.call('ZADD', K.users, 'NX', exact(is_idle(user) and now + user_ttl or NEVER), user_name)
  if user.held then -- for one task's time at most (and its debt): its moment may be of a clock that was ahead
    local free = math.min(user.held, now + (user.gap or 0) + (user.debt or 0))
    redis.call('ZADD', K.throttled, 'LT', exact(free), user_name)
  else
    rate.note_pause(user)
  end
  repair_ring(user)
  if user.group then redis.call('ZREM', K.ring, user_name) end
  if user.group and can_be_served(user) then
    redis.call('ZADD', K.grouped, 0, user_name)
  else
    redis.call('ZREM', K.grouped, user_name)
  end
  return 1
end

function fix.result(user_name, id) return bounds.repair_result(user_name, id, read_task(id)) end

function fix.member(organization_name, user_name)
  local user = load_user(user_name)
  return user.group ~= organization_name and redis.call('ZREM', members_key(organization_name), user_name) or 0
end

function fix.group(organization_name, detail)
  local field, difference = string.match(detail, '^(%l+):(%-?%d+)$')
  add(load_organization(organization_name), field, tonumber(difference))
  return 1
end

function fix.standing(organization_name)
  local organization = load_organization(organization_name)
  if organization.is_new then
    redis.call('ZREM', K.groups, organization_name)
    zrem(K.throttled, organization.entry)
    return redis.call('ZREM', K.ring, organization.entry)
  end
  redis.call('ZADD', K.groups, 0, organization_name)
  rate.note_pause(organization)
  repair_ring(organization)
  return 1
end

function fix.key(name)
  local kind, id = string.match(name, '^(%l+):(.*)$')
  if kind ~= 'payload' and kind ~= 'history' and kind ~= 'logs' then return 2 end
  return not is_known(id) and redis.call('DEL', P .. name) or 0
end

local codes = {}
for i = 1, tonumber(ARGV[FIRST_ARG]) do
  local at = FIRST_ARG + 1 + (i - 1) * 3
  codes[i] = fix[ARGV[at]](ARGV[at + 1], ARGV[at + 2])
  commit()
end
wake_if(true)
return table.concat(codes)
