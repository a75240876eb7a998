-- Messages for other shards. A worker of the queue carries a message to its shard, and the message stays until that is done.
-- `field` identifies the message, so that the same one is not stored twice.

local outbox = {}

each_call(function() outbox.has_posted = false end)
function outbox.post(field, body)
  redis.call('HSET', K.outbox, field, body)
  outbox.has_posted = true
end

function outbox.post_once(field, body) -- keeps the time of the first post
  redis.call('HSETNX', K.outbox, field, body)
  outbox.has_posted = true
end
