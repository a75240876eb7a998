#!lua flags=allow-oom
-- Mend what the checker found: the task's own record is what counts, indexes and counters are made to agree with it.
--
-- Each mending looks again first: what is right (by now) is left alone.
--
-- KEYS    base workers
-- ARGV    options, n (1..200), then n × (what, name, detail):
--         task id '' (its registries, queue, lease, payload); index registry id (a member without a task);
--         queue user id; lease worker id; edge blocker waiter; run run id; user id field:difference;
--         stat field difference; place user '' (ring, rate, registry of users); key name '' (payload or history);
--         member group user (does not belong there); group id field:difference; standing group '' (ring, registry of
--         groups); sum field difference (of the figures of groups);
--         mirror id '' (of a task on another shard); watchers id '' (other shards have not heard of its end)
-- REPLY   one digit each: 0 nothing to mend, 1 mended, 2 can't be mended by a program
-- COST    25 commands each
-- include base ring organization user recent_usage task dependents
local STATES = { 'scheduled', 'deferred', 'queued', 'started', 'finished', 'failed', 'canceled' }
local mend = {}

local function registry_score(t)
  if t.state == 'scheduled' then return tonumber(t.raw.due) or now end
  if t.state == 'deferred' then return t.expires or NEVER end
  if t.state == 'queued' then return queued_look(t) end
  if t.state == 'started' then return now end -- its lease is not known to last: another worker may have it
  return now + (t.state == 'failed' and failed_ttl or result_ttl)
end

local function mend_queue(t)
  local critical, normal = critical_key(t.user), normal_key(t.user)
  local wanted = t.state == 'queued' and (t.priority == 6 and 'critical' or 'normal') or ''
  local in_critical = #redis.call('LPOS', critical, t.id, 'COUNT', 0)
  local in_normal = redis.call('ZSCORE', normal, t.id)
  if in_critical > 0 and (wanted ~= 'critical' or in_critical > 1) then redis.call('LREM', critical, 0, t.id) end
  if wanted == 'critical' and in_critical ~= 1 then redis.call('RPUSH', critical, t.id) end
  if wanted == 'normal' and not (in_normal and math.floor(tonumber(in_normal) / BAND) == t.priority) then
    redis.call('ZADD', normal, exact(t.priority * BAND + math.max(0, t.ready - EPOCH)), t.id)
  elseif wanted ~= 'normal' and in_normal then
    redis.call('ZREM', normal, t.id)
  end
end

local function mend_scheduled(t, moment)
  if t.state == 'scheduled' then
    redis.call('ZADD', scheduled_key(t.user), exact(moment), t.id)
    redis.call('ZADD', K.due, 'LT', exact(moment), t.user)
  else
    redis.call('ZREM', scheduled_key(t.user), t.id)
  end
end

function mend.task(id)
  local known = redis.call('EXISTS', task_key(id)) == 1
  local t = read_task(id)
  if known and not t then return 2 end
  for _, state in ipairs(STATES) do
    local key = K['state:' .. state]
    local there = redis.call('ZSCORE', key, id)
    if t and t.state == state then
      if not there then redis.call('ZADD', key, exact(registry_score(t)), id) end
    elseif there then
      redis.call('ZREM', key, id)
    end
  end
  if not t then return 1 end
  if not K['state:' .. t.state] then return 2 end
  mend_queue(t)
  mend_scheduled(t, tonumber(redis.call('ZSCORE', K['state:' .. t.state], id)))
  if t.state == 'started' then redis.call('SADD', leases_key(t.worker), id) end
  redis.call('SETNX', payload_key(id), '') -- a lost payload can't be decoded: its task ends as poisoned
  if t.state == 'deferred' and redis.call('SCARD', blocked_key(id)) == 0 then
    t.u = load_user(t.user)
    t.blockers = {}
    release(t)
  end
  look_at(now)
  return 1
end

function mend.index(registry, id)
  return redis.call('EXISTS', task_key(id)) == 0 and redis.call('ZREM', K['state:' .. registry], id) or 0
end

function mend.queue(user, id)
  local t = read_task(id)
  if t and t.user == user then
    mend_queue(t)
    if t.state ~= 'scheduled' then redis.call('ZREM', scheduled_key(user), id) end
    return 1
  end
  return math.min(1, redis.call('LREM', critical_key(user), 0, id) + redis.call('ZREM', normal_key(user), id)
    + redis.call('ZREM', scheduled_key(user), id))
end

function mend.lease(worker, id)
  local t = read_task(id)
  local is_held = t and t.state == 'started' and t.worker == worker
  return redis.call(is_held and 'SADD' or 'SREM', leases_key(worker), id)
end

function mend.edge(blocker, waiter)
  local t, b = read_task(waiter), read_task(blocker)
  local is_open = b and b.state ~= 'finished' and b.state ~= 'canceled'
  local before = redis.call('SISMEMBER', blocked_key(waiter), blocker)
  if t and t.state == 'deferred' then -- complete it; what is over is told as ever, only later
    redis.call('SADD', blocked_key(waiter), blocker)
    redis.call('SADD', waiting_key(blocker), waiter)
    if (t.raw.policy or 'wait') ~= 'wait' then redis.call('SADD', reacting_key(blocker), waiter) end
    if b then redis.call('HSET', task_key(blocker), 'waited', '1') end
    if not is_open or (b.state == 'failed' and t.raw.policy) then zadd(K.resolving, stat.resolve_turn, blocker) end
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

function mend.mirror(id)
  local mirror = read_mirror(id)
  if mirror and redis.call('EXISTS', waiting_key(id)) == 1 then watch(mirror) else forget_mirror(id) end
  return 1
end

function mend.watchers(id)
  redis.call('HSET', task_key(id), 'watched', '1')
  zadd(K.resolving, stat.resolve_turn, id)
  look_at(now)
  return 1
end

function mend.run(run, id)
  local belongs = redis.call('HGET', task_key(id), 'run') == run
  return redis.call(belongs and 'SADD' or 'SREM', run_key(run), id)
end

function mend.user(user, detail)
  local field, difference = string.match(detail, '^(.*):(%-?%d+)$')
  local u = load_user(user)
  set(u, field, (u[field] or 0) + tonumber(difference))
  if string.sub(field, 1, 6) == 'ready:' then u.ready = u.ready + tonumber(difference) end
  return 1
end

function mend.stat(field, difference)
  count(field, tonumber(difference))
  return 1
end

mend.sum = mend.stat

local function mend_ring(one)
  local ring = ring_of(one.floor)
  local is_there = redis.call('ZSCORE', ring, one.entry)
  if can_be_served(one) and not is_there then
    join_ring(one)
    set(one, 'tag', one.tag)
  elseif is_there and not can_be_served(one) then
    redis.call('ZREM', ring, one.entry)
  end
end

function mend.place(user)
  local u = load_user(user)
  if u.is_new then
    redis.call('ZREM', K.users, user)
    redis.call('ZREM', K.throttled, user)
    redis.call('ZREM', K.grouped, user)
    return redis.call('ZREM', K.ring, user)
  end
  redis.call('ZADD', K.users, 'NX', exact(is_idle(u) and now + user_ttl or NEVER), user)
  if u.held then -- for one task's time at most (and its debt): its moment may be of a clock that was ahead
    local free = math.min(u.held, now + (u.gap or 0) + (u.debt or 0))
    redis.call('ZADD', K.throttled, 'LT', exact(free), user)
  else
    redis.call('ZREM', K.throttled, user)
  end
  mend_ring(u)
  if u.group then redis.call('ZREM', K.ring, user) end
  if u.group and can_be_served(u) then
    redis.call('ZADD', K.grouped, 0, user)
  else
    redis.call('ZREM', K.grouped, user)
  end
  return 1
end

function mend.member(group, user)
  local u = load_user(user)
  return u.group ~= group and redis.call('ZREM', members_key(group), user) or 0
end

function mend.group(group, detail)
  local field, difference = string.match(detail, '^(%l+):(%-?%d+)$')
  add(load_group(group), field, tonumber(difference))
  return 1
end

function mend.standing(group)
  local g = load_group(group)
  if g.is_new then
    redis.call('ZREM', K.groups, group)
    return redis.call('ZREM', K.ring, g.entry)
  end
  redis.call('ZADD', K.groups, 0, group)
  mend_ring(g)
  return 1
end

function mend.key(name)
  local kind, id = string.match(name, '^(%l+):(.*)$')
  if kind ~= 'payload' and kind ~= 'history' then return 2 end
  return redis.call('EXISTS', task_key(id)) == 0 and redis.call('DEL', P .. name) or 0
end

local codes = {}
for i = 1, tonumber(ARGV[A]) do
  local at = A + 1 + (i - 1) * 3
  codes[i] = mend[ARGV[at]](ARGV[at + 1], ARGV[at + 2])
  commit()
end
wake_if(true)
return table.concat(codes)
