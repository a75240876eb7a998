#!lua flags=allow-oom
-- Delete the messages that have reached their shards. A message stays if it was posted again with another body after
-- the caller read it.
--
-- KEYS    base
-- ARGV    options, n (0..1000), then n × (field, body)
-- REPLY   how many were forgotten
-- COST    2 commands each
-- include clock
local removed = 0
for i = 1, tonumber(ARGV[FIRST_ARG]) do
  local field, body = ARGV[FIRST_ARG + 2 * i - 1], ARGV[FIRST_ARG + 2 * i]
  if redis.call('HGET', K.outbox, field) == body then removed = removed + redis.call('HDEL', K.outbox, field) end
end
return removed
