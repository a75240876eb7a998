-- A mirror is the record, on this shard, of a task on another shard for which tasks on this shard wait.
--
-- include keys clock writes outbox

local mirrors = {}

function mirrors.read(id)
  local found = redis.call('HMGET', keys.remote(id), 'state', 'shard')
  return found[1] and { id = id, state = found[1], raw = {}, shard = found[2] }
end

local WATCH_AGAIN = 60e6 -- microseconds after which the other shard is requested again to report the end of its task
function mirrors.watch(mirror)
  writes.zadd(K.mirrors, clock.now + WATCH_AGAIN, mirror.id)
  outbox.post_once('watch:' .. mirror.shard .. ':' .. mirror.id, clock.now_text)
end

function mirrors.forget(id)
  redis.call('DEL', keys.remote(id))
  writes.zrem(K.mirrors, id)
end
