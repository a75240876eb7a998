#!lua flags=allow-oom
-- Extend leases. A lease that is not its task's current lease is not extended.
--
-- KEYS    base
-- ARGV    options, lease (us), n (1..1000), then n × (id, token)
-- REPLY   one digit per lease: 0 stale, 1 renewed
-- COST    1 command a lease and 3
-- include calls keys clock statistics writes
local codes = {}
for i = 1, tonumber(ARGV[FIRST_ARG + 1]) do
  local id, token = ARGV[FIRST_ARG + 2 * i], ARGV[FIRST_ARG + 2 * i + 1]
  local held = calls.attempt('HMGET', keys.task(id), 'state', 'token') or {}
  codes[i] = held[1] == 'started' and held[2] == token and 1 or 0
  if codes[i] == 1 then writes.zadd(K['state:started'], clock.now + tonumber(ARGV[FIRST_ARG]), id) end
end
writes.flush()
statistics.flush()
return table.concat(codes)
