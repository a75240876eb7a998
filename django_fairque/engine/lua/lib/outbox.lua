-- Messages for other shards. A worker delivers a message to its shard; until then the message is kept. `field`
-- identifies the message, so that the same message is not stored twice.

local outbox = {}

each_call(function() outbox.has_posted = false end)
function outbox.post(field, body)
  redis.call('HSET', K.outbox, field, body)
  outbox.has_posted = true
end

function outbox.post_once(field, body) -- a message that is already stored keeps the time of its first post
  redis.call('HSETNX', K.outbox, field, body)
  outbox.has_posted = true
end
