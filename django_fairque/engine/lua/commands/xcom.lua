#!lua
-- Keep values that tasks pass to each other, as long as the last of them asks for.
--
-- KEYS    stats xcom
-- ARGV    options, ttl (us), most keys in a namespace, n (1..1000), then n × (key, value; opaque bytes)
-- REPLY   1 kept, 0 refused: there would be too many keys
-- COST    4 commands
-- include heads base
local ttl, most, size = tonumber(ARGV[FIRST_ARG]), tonumber(ARGV[FIRST_ARG + 1]), tonumber(ARGV[FIRST_ARG + 2])
local pairs_, names = {}, {}
for i = 1, size do
  names[i] = ARGV[FIRST_ARG + 1 + 2 * i]
  pairs_[2 * i - 1], pairs_[2 * i] = names[i], ARGV[FIRST_ARG + 2 + 2 * i]
end
local new = redis.call('HLEN', K.xcom)
for _, known in ipairs(redis.call('HMGET', K.xcom, unpack(names))) do
  if not known then new = new + 1 end
end
if new > most then return 0 end
redis.call('HSET', K.xcom, unpack(pairs_))
local left = math.max(redis.call('PTTL', K.xcom), math.ceil(ttl / 1000))
redis.call('PEXPIRE', K.xcom, exact(left))
return 1
