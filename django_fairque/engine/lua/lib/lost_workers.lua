-- Workers whose records expired although they did not report a stop: the machine failed, or all processes were killed.
-- Lost workers are kept for a day.
--
-- include numbers clock counters writes

local lost_workers = {}

local KEPT, MOST = 24 * 3600e6, 1000

-- Each shard has this list; only the list of the first shard is read.
function lost_workers.add(workers)
  local key = P .. 'workers:lost'
  for _, worker in ipairs(workers) do
    writes.zadd(key, clock.now, worker)
    writes.zrem(K.workers, worker)
  end
  writes.flush()
  redis.call('ZREMRANGEBYSCORE', key, '-inf', numbers.exact(clock.now - KEPT))
  local oldest = redis.call('ZRANGE', key, 0, -MOST - 1)
  if #oldest > 0 then redis.call('ZREM', key, unpack(oldest)) end
  redis.call('PEXPIRE', key, numbers.exact(KEPT / 1000))
  counters.set('incidents', 1)
end
