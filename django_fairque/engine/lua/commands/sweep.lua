#!lua flags=allow-oom
-- Bounded maintenance: start what is due, take back ended leases, expire, forget what has ended long ago.
--
-- KEYS    base workers schedules:due
-- ARGV    options; or, to record the sample of a minute and do nothing else: options, ready tasks, the oldest wait (us),
--         field and value of the hour's record, and of the half hour's record of waits
-- REPLY   due, reaped, expired, overdue, freed, forgotten, dropped, 1 if there is more to do, look (us), now (us),
--         at risk, promoted, alerts to fetch, when the next schedule is due (us), messages
--         for other shards, 1 if this minute has no sample yet
-- COST    18 commands when nothing is due; at most the options' sweep limit of each kind
-- include heads base ring organization recent_usage user bounds task dependents removal due_work
if ARGV[FIRST_ARG] then
  if stat.sampled ~= math.floor(now / 60e6) then
    touch(P .. 'stats:hours')
    touch(P .. 'stats:waits')
    touch_minute()
    touch_all()
    tally('ready', tonumber(ARGV[FIRST_ARG]))
    tally('oldest', tonumber(ARGV[FIRST_ARG + 1]))
    attempt('HSET', P .. 'stats:hours', ARGV[FIRST_ARG + 2], ARGV[FIRST_ARG + 3])
    attempt('HSET', P .. 'stats:waits', ARGV[FIRST_ARG + 4], ARGV[FIRST_ARG + 5])
    set_stat('sampled', math.floor(now / 60e6))
    commit()
  end
  return {}
end
start_due(sweep_limit)
for _, state in ipairs({ 'finished', 'failed', 'canceled' }) do
  local ids = due_members(K['state:' .. state], sweep_limit)
  for _, id in ipairs(ids) do
    touch(task_key(id))
    touch(payload_key(id))
    touch(history_key(id))
    touch(P .. 'logs:' .. id)
  end
  touch_all()
  forget(state, ids)
  swept.forgotten = swept.forgotten + #ids
  if #ids > 0 then commit() end
end
for _, name in ipairs(due_members(K.users, sweep_limit)) do
  local user = load_user(name)
  if is_idle(user) and not user.is_damaged then
    redis.call('DEL', user.key)
    zrem(K.users, name)
  else
    zadd(K.users, NEVER, name)
  end
end
for _, worker in ipairs(due_members(K.workers, sweep_limit)) do zrem(K.workers, worker) end
for _, id in ipairs(due_members(K.mirrors, sweep_limit)) do
  local mirror, is_waited = read_mirror(id), redis.call('EXISTS', waiting_key(id)) == 1
  if mirror and is_waited then watch(mirror) else forget_mirror(id) end
end
set_next_look()
local served = redis.call('ZCARD', K.ring)
-- Versions before did not count active users. Without organizations all who stand in the ring are active; with them a member of a
-- paused organization is active and not in the shard's ring.
if stat.groups == 0 and stat.active_users < served then set_stat('active_users', served) end
if stat.groups == 0 and stat.active == 0 and stat.active_users > 0 then set_stat('active_users', 0) end
commit()
if served == 0 then
  redis.call('ZREM', K.wake, 'ready')
else
  wake_if(true) -- a worker may have taken the marker and died
end
return {
  swept.due, swept.reaped, swept.expired, swept.overdue, swept.freed, swept.forgotten, swept.dropped,
  more_to_sweep and 1 or 0, exact(stat.look), exact(now), swept.at_risk, swept.promoted, redis.call('LLEN', K.alerts),
  redis.call('ZRANGE', K['schedules:due'], 0, 0, 'WITHSCORES')[2] or exact(NEVER), redis.call('HLEN', K.outbox),
  stat.sampled ~= math.floor(now / 60e6) and 1 or 0,
}
