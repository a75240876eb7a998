#!lua flags=allow-oom
-- Do a limited amount of maintenance: start due tasks, take back ended leases, expire tasks, and delete tasks that
-- ended long ago.
--
-- KEYS    base workers schedules:due
-- ARGV    options; or, to record the sample of a minute and do nothing else: options, ready tasks, the oldest wait (us),
--         field and value of the hour's record, and of the half hour's record of waits
-- REPLY   due, reaped, expired, overdue, freed, forgotten, dropped, 1 if there is more to do, look (us), now (us),
--         at risk, promoted, alerts to fetch, when the next schedule is due (us), messages
--         for other shards, 1 if incidents are open or workers were lost, how many acts on many tasks workers carry out, 1 if this minute has no sample yet
-- COST    17 commands when nothing is due; at most the options' sweep limit of each kind
-- include numbers calls keys options counters clock slot statistics writes ring users limits saving mirrors removal user_periods due_work lost_workers
if ARGV[FIRST_ARG] then
  if counters.shard.sampled ~= math.floor(clock.now / 60e6) then
    slot.touch(P .. 'stats:hours')
    slot.touch(P .. 'stats:waits')
    statistics.touch_minute()
    slot.touch_all()
    statistics.sample(ARGV[FIRST_ARG], ARGV[FIRST_ARG + 1])
    calls.attempt('HSET', P .. 'stats:hours', ARGV[FIRST_ARG + 2], ARGV[FIRST_ARG + 3])
    calls.attempt('HSET', P .. 'stats:waits', ARGV[FIRST_ARG + 4], ARGV[FIRST_ARG + 5])
    saving.commit()
  end
  return {}
end
due_work.start(options.sweep_limit)
for _, state in ipairs({ 'finished', 'failed', 'canceled' }) do
  local ids = due_work.read_due(K['state:' .. state], options.sweep_limit)
  for _, id in ipairs(ids) do
    slot.touch(keys.task(id))
    slot.touch(keys.payload(id))
    slot.touch(keys.history(id))
    slot.touch(P .. 'logs:' .. id)
  end
  slot.touch_all()
  removal.forget(state, ids)
  due_work.swept.forgotten = due_work.swept.forgotten + #ids
  if #ids > 0 then saving.commit() end
end
for _, name in ipairs(due_work.read_due(K.users, options.sweep_limit)) do
  local user = users.load(name)
  if users.is_idle(user) and not user.is_damaged then
    user_periods.keep(user)
    redis.call('DEL', user.key)
    writes.zrem(K.users, name)
  else
    writes.zadd(K.users, clock.NEVER, name)
  end
end
local lost = due_work.read_due(K.workers, options.sweep_limit)
if #lost > 0 then lost_workers.add(lost) end
for _, id in ipairs(due_work.read_due(K.mirrors, options.sweep_limit)) do
  local mirror, is_waited = mirrors.read(id), redis.call('EXISTS', keys.waiting(id)) == 1
  if mirror and is_waited then mirrors.watch(mirror) else mirrors.forget(id) end
end
limits.correct_one(users.load)
due_work.set_next()
saving.commit()
if not ring.has_anyone() then
  redis.call('ZREM', K.wake, 'ready')
else
  ring.wake_if(true) -- set the marker again: a worker may have taken it and died
end
return {
  due_work.swept.due, due_work.swept.reaped, due_work.swept.expired, due_work.swept.overdue, due_work.swept.freed, due_work.swept.forgotten, due_work.swept.dropped,
  due_work.has_more and 1 or 0, numbers.exact(counters.shard.look), numbers.exact(clock.now), due_work.swept.at_risk, due_work.swept.promoted, redis.call('LLEN', K.alerts),
  redis.call('ZRANGE', K['schedules:due'], 0, 0, 'WITHSCORES')[2] or numbers.exact(clock.NEVER), redis.call('HLEN', K.outbox), counters.shard.incidents, counters.shard.acts,
  counters.shard.sampled ~= math.floor(clock.now / 60e6) and 1 or 0,
}
