#!lua flags=allow-oom
-- Repair inconsistencies that the invariant checker found. The record of a task is the truth; indexes and counters are
-- changed to agree with it.
--
-- Each repair first reads the data again, and changes nothing if the data is consistent now.
--
-- KEYS    base workers
-- ARGV    options, n (1..200), then n × (what, name, detail):
--         task id '' (its registries, queue, lease, payload); index registry id (a member without a task);
--         queue user id; lease worker id; edge blocker waiter; run run id; user id field:difference;
--         stat field difference; place user '' (ring, rate, registry of users); key name '' (payload, history or logs);
--         member organization user (does not belong there); organization id field:difference; standing organization '' (ring, registry of
--         organizations); sum field difference (of the figures of organizations);
--         limit id field:difference (of its counts; its places in the indexes are written again); limited id task (waits there, or not);
--         result user id (whether it is among the user's results);
--         mirror id '' (of a task on another shard); watchers id '' (other shards were not notified of its end)
-- REPLY   one digit each: 0 nothing to fix, 1 fixed, 2 can't be fixed by a program
-- COST    25 commands each
-- include numbers keys options counters clock writes records ring organizations users queues rate limits saving bounds task_record mirrors deadlines dependents
counters.read_again()

local STATES = { 'scheduled', 'deferred', 'queued', 'started', 'finished', 'failed', 'canceled' }
local fix = {}

local function registry_score(task)
  if task.state == 'scheduled' then return tonumber(task.raw.due) or clock.now end
  if task.state == 'deferred' then return task.expires or clock.NEVER end
  if task.state == 'queued' then return deadlines.next_check(task) end
  if task.state == 'started' then return clock.now end -- the end of the task's lease is unknown, so the lease ends now
  return clock.now + (task.state == 'failed' and options.failed_ttl or options.result_ttl)
end

local function repair_queue(task)
  local critical, normal = keys.critical(task.user), keys.normal(task.user)
  local wanted = task.state == 'queued' and (task.raw.waits_at or '') == '' and (task.priority == 6 and 'critical' or 'normal') or ''
  local in_critical = #redis.call('LPOS', critical, task.id, 'COUNT', 0)
  local in_normal = redis.call('ZSCORE', normal, task.id)
  if in_critical > 0 and (wanted ~= 'critical' or in_critical > 1) then redis.call('LREM', critical, 0, task.id) end
  if wanted == 'critical' and in_critical ~= 1 then redis.call('RPUSH', critical, task.id) end
  if wanted == 'normal' and not (in_normal and math.floor(tonumber(in_normal) / queues.BAND) == task.priority) then
    redis.call('ZADD', normal, numbers.exact(task.priority * queues.BAND + math.max(0, task.ready - clock.EPOCH)), task.id)
  elseif wanted ~= 'normal' and in_normal then
    redis.call('ZREM', normal, task.id)
  end
end

local function repair_scheduled(task, moment)
  if task.state == 'scheduled' then
    redis.call('ZADD', keys.scheduled(task.user), numbers.exact(moment), task.id)
    redis.call('ZADD', K.due, 'LT', numbers.exact(moment), task.user)
  else
    redis.call('ZREM', keys.scheduled(task.user), task.id)
  end
end

-- Return whether a task with this id exists, even if its record is damaged.
local function is_known(id) return redis.call('EXISTS', keys.task(id)) == 1 or task_record.read(id) ~= nil end

-- Return whether a task can't be recovered: its payload and its head are gone, or only the head of an ended task is
-- left.
local function is_lost(id, task)
  if redis.call('EXISTS', keys.task(id)) == 1 then
    return not task and redis.call('HEXISTS', keys.task(id), 'user') == 0 and redis.call('EXISTS', keys.payload(id)) == 0
  end
  if not task or redis.call('ZSCORE', K['state:queued'], id) then return false end
  for _, state in ipairs({ 'finished', 'failed', 'canceled' }) do
    if redis.call('ZSCORE', K['state:' .. state], id) then return true end
  end
  return false
end

local function remove_lost(id)
  local worker = redis.call('HGET', keys.task(id), 'worker')
  if worker then redis.call('SREM', keys.leases(worker), id) end
  for _, state in ipairs(STATES) do redis.call('ZREM', K['state:' .. state], id) end
  redis.call('DEL', keys.task(id), keys.payload(id), keys.history(id), P .. 'logs:' .. id)
end

function fix.task(id)
  local task = task_record.read(id)
  if is_lost(id, task) then
    remove_lost(id)
    return 1
  end
  if not task and is_known(id) then return 2 end
  for _, state in ipairs(STATES) do
    local key = K['state:' .. state]
    local there = redis.call('ZSCORE', key, id)
    if task and task.state == state then
      if not there then redis.call('ZADD', key, numbers.exact(registry_score(task)), id) end
    elseif there then
      redis.call('ZREM', key, id)
    end
  end
  if not task then return 1 end
  if not K['state:' .. task.state] then return 2 end
  repair_queue(task)
  repair_scheduled(task, tonumber(redis.call('ZSCORE', K['state:' .. task.state], id)))
  if task.state == 'started' then redis.call('SADD', keys.leases(task.worker), id) end
  redis.call('SETNX', keys.payload(id), '') -- an empty payload can't be decoded, so the task ends as poisoned
  if task.state == 'deferred' and redis.call('SCARD', keys.blocked(id)) == 0 then
    task.owner = users.load(task.user)
    task.blockers = {}
    dependents.release(task)
  end
  counters.note_due(clock.now)
  return 1
end

function fix.index(registry, id)
  return not is_known(id) and redis.call('ZREM', K['state:' .. registry], id) or 0
end

function fix.queue(user_name, id)
  local task = task_record.read(id)
  if task and task.user == user_name then
    repair_queue(task)
    if task.state ~= 'scheduled' then redis.call('ZREM', keys.scheduled(user_name), id) end
    return 1
  end
  return math.min(1, redis.call('LREM', keys.critical(user_name), 0, id) + redis.call('ZREM', keys.normal(user_name), id)
    + redis.call('ZREM', keys.scheduled(user_name), id))
end

function fix.lease(worker, id)
  local task = task_record.read(id)
  local is_held = task and task.state == 'started' and task.worker == worker
  return redis.call(is_held and 'SADD' or 'SREM', keys.leases(worker), id)
end

function fix.edge(blocker, waiter)
  local task, blocker_task = task_record.read(waiter), task_record.read(blocker)
  local is_open = blocker_task and blocker_task.state ~= 'finished' and blocker_task.state ~= 'canceled'
  local before = redis.call('SISMEMBER', keys.blocked(waiter), blocker)
  if task and task.state == 'deferred' then -- write all parts of the edge; if the blocker has ended, a later sweep resolves the edge
    redis.call('SADD', keys.blocked(waiter), blocker)
    redis.call('SADD', keys.waiting(blocker), waiter)
    if (task.raw.policy or 'wait') ~= 'wait' then redis.call('SADD', keys.reacting(blocker), waiter) end
    if blocker_task then redis.call('HSET', keys.task(blocker), 'waited', '1') end
    if not is_open or (blocker_task.state == 'failed' and task.raw.policy) then writes.zadd(K.resolving, counters.shard.resolve_turn, blocker) end
    if before == 0 then counters.count('edges', 1) end
  else
    redis.call('SREM', keys.blocked(waiter), blocker)
    redis.call('SREM', keys.waiting(blocker), waiter)
    redis.call('SREM', keys.reacting(blocker), waiter)
    redis.call('SREM', keys.first(blocker), waiter)
    if before == 1 then counters.count('edges', -1) end
  end
  counters.note_due(clock.now)
  return 1
end

function fix.mirror(id)
  local mirror = mirrors.read(id)
  if mirror and redis.call('EXISTS', keys.waiting(id)) == 1 then mirrors.watch(mirror) else mirrors.forget(id) end
  return 1
end

function fix.watchers(id)
  redis.call('HSET', keys.task(id), 'watched', '1')
  writes.zadd(K.resolving, counters.shard.resolve_turn, id)
  counters.note_due(clock.now)
  return 1
end

function fix.run(run, id)
  local belongs = redis.call('HGET', keys.task(id), 'run') == run
  return redis.call(belongs and 'SADD' or 'SREM', keys.run(run), id)
end

function fix.user(user_name, detail)
  local field, difference = string.match(detail, '^(.*):(%-?%d+)$')
  local user = users.load(user_name)
  records.set(user, field, (user[field] or 0) + tonumber(difference))
  if string.match(field, '^ready:[1-6]$') then user.ready = user.ready + tonumber(difference) end
  return 1
end

function fix.stat(field, difference)
  counters.count(field, tonumber(difference))
  return 1
end

fix.sum = fix.stat

local function repair_ring(one)
  local key = ring.key(one.ring_owner)
  local is_there = redis.call('ZSCORE', key, one.entry)
  if ring.can_be_served(one) and not is_there then
    ring.join(one)
    records.set(one, 'tag', one.tag)
  elseif is_there and not ring.can_be_served(one) then
    redis.call('ZREM', key, one.entry)
  elseif is_there and (tonumber(is_there) < 0) ~= (one.came > 0) then
    redis.call('ZADD', key, numbers.exact(ring.place_of(one)), one.entry)
  end
  for _, lane in ipairs({ 'urgent', 'bulk' }) do
    local lane_key, wanted = ring.lane_key(one.ring_owner, lane), ring.can_start(one, lane)
    if wanted and not redis.call('ZSCORE', lane_key, one.entry) then
      if lane == 'urgent' then records.set(one, 'urgent_tag', math.max(one.urgent_tag or 0, one.ring_owner.vtime)) end
      local place = math.max(0, ring.place_in(one, lane))
      redis.call('ZADD', lane_key, numbers.exact(place), one.entry)
    elseif not wanted then
      redis.call('ZREM', lane_key, one.entry)
    end
  end
end

local function remove_from_lanes(entry)
  return math.max(redis.call('ZREM', K.ring, entry), redis.call('ZREM', K.urgent, entry), redis.call('ZREM', K.bulk, entry))
end

function fix.place(user_name)
  local user = users.load(user_name)
  if user.is_new then
    redis.call('ZREM', K.users, user_name)
    redis.call('ZREM', K.throttled, user_name)
    redis.call('ZREM', K.grouped, user_name)
    return remove_from_lanes(user_name)
  end
  redis.call('ZADD', K.users, 'NX', numbers.exact(users.is_idle(user) and clock.now + options.user_ttl or clock.NEVER), user_name)
  if user.held then -- hold the user for at most the time of one task (and its debt), because a clock that was ahead may have set the stored moment
    local free = math.min(user.held, clock.now + (user.gap or 0) + (user.debt or 0))
    redis.call('ZADD', K.throttled, 'LT', numbers.exact(free), user_name)
  else
    rate.note_pause(user)
  end
  repair_ring(user)
  if user.group then remove_from_lanes(user_name) end
  if user.group and ring.can_start_any(user) then
    redis.call('ZADD', K.grouped, 0, user_name)
  else
    redis.call('ZREM', K.grouped, user_name)
  end
  return 1
end

function fix.result(user_name, id) return bounds.repair_result(user_name, id, task_record.read(id)) end

function fix.member(organization_name, user_name)
  local user = users.load(user_name)
  if user.group == organization_name then return 0 end
  redis.call('ZREM', P .. 'urgent:' .. organization_name, user_name)
  redis.call('ZREM', P .. 'bulk:' .. organization_name, user_name)
  return redis.call('ZREM', keys.members(organization_name), user_name)
end

function fix.group(organization_name, detail)
  local field, difference = string.match(detail, '^(.*):(%-?%d+)$')
  records.add(organizations.load(organization_name), field, tonumber(difference))
  return 1
end

function fix.limit(id, detail)
  local field, difference = string.match(detail, '^(.*):(%-?%d+)$')
  local limit = limits.load(id)
  for _, lane in ipairs({ 'urgent', 'normal', 'bulk' }) do redis.call('ZREM', K['limited:' .. lane], id) end
  redis.call('ZREM', K.throttled, limits.PREFIX .. id)
  redis.call('ZREM', K.limits, id)
  limit.was_shown = nil
  records.set(limit, 'listed', 0)
  records.set(limit, 'held', nil)
  limits.reconsider(id, users.load)
  records.add(limit, field, tonumber(difference))
  return 1
end

function fix.limited(id, task_id)
  local task, limit = task_record.read(task_id), limits.load(id)
  if task and task.state == 'queued' and task.raw.waits_at == id then
    redis.call('ZADD', keys.limit_queue(id, task.user), numbers.exact(limits.score(task)), task_id)
    if limit.has_queue then limits.stand(limit, task.user, queues.lane_of(task.priority)) end
    return 1
  end
  local user_name = task and task.user or limits.owner_name(id)
  return user_name and redis.call('ZREM', keys.limit_queue(id, user_name), task_id) or 2
end

function fix.standing(organization_name)
  local organization = organizations.load(organization_name)
  if organization.is_new then
    redis.call('ZREM', K.groups, organization_name)
    redis.call('ZREM', K.guaranteed, organization_name)
    writes.zrem(K.throttled, organization.entry)
    return remove_from_lanes(organization.entry)
  end
  redis.call('ZADD', K.groups, 0, organization_name)
  rate.note_pause(organization)
  repair_ring(organization)
  if not organization.share then redis.call('ZREM', K.guaranteed, organization_name) end
  records.set(organization, 'share', organization.share) -- mark the share as changed, so that saving writes the organization's position
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
  saving.commit()
end
ring.wake_if(true)
return table.concat(codes)
