-- A message for another shard: a worker of the queue carries it there, and it stays until that is done. `field` says
-- what it is, so that the same message is there once.

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
