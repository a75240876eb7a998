#!lua
-- Store values that the tasks of a run pass to each other. A namespace of values is kept for the
-- longest time that one of the storing tasks requests.
--
-- KEYS    stats xcom
-- ARGV    options, ttl (us), most keys in a namespace, namespace, user ('': the values count for nobody), most bytes of the user (0: no
--         limit), m (0..100) and m namespaces of the user to remove first, n (1..1000), then n × (key, value; opaque bytes)
-- REPLY   1 kept, 0 refused: there would be too many keys; or a list, refused: there would be too many bytes. The list has the bytes that
--         the user has, those that are too many, and the user's first 50 namespaces with their bytes, in the order of their ends
-- COST    4 commands; 9 for a user, and 4 for each namespace of the user that has ended or is removed
-- include numbers calls counters clock slot statistics
local OVERHEAD = 100 -- bytes of memory that a value takes in addition to its own bytes
local MOST_ENDED, MOST_NAMED = 100, 50 -- the largest numbers of ended and of named namespaces in one call
local ttl, most, namespace, user_name, most_bytes = tonumber(ARGV[FIRST_ARG]), tonumber(ARGV[FIRST_ARG + 1]), unpack(ARGV, FIRST_ARG + 2, FIRST_ARG + 4)
local at = FIRST_ARG + 5
local gone = { unpack(ARGV, at + 1, at + tonumber(ARGV[at])) }
at = at + #gone + 1
local pairs_, names = {}, {}
for i = 1, tonumber(ARGV[at]) do
  names[i] = ARGV[at - 1 + 2 * i]
  pairs_[2 * i - 1], pairs_[2 * i] = names[i], ARGV[at + 2 * i]
end
local size, added = redis.call('HLEN', K.xcom), 0
local is_new = size == 0
for i, known in ipairs(redis.call('HMGET', K.xcom, unpack(names))) do
  if not known then
    size = size + 1
    added = added + #names[i] + OVERHEAD
  end
  added = added + #pairs_[2 * i] - (known and #known or 0)
end
if size > most then return 0 end
local left = math.max(redis.call('PTTL', K.xcom), math.ceil(ttl / 1000))

-- The server keeps for each user: the namespaces ordered by their ends, the bytes of each namespace, and the sum of
-- these bytes in the field with the empty name. Both keys expire with the last namespace.
local by_end, bytes_by_name = P .. 'xcoms:' .. user_name, P .. 'xcom_bytes:' .. user_name
local ended = user_name ~= '' and calls.attempt('ZRANGEBYSCORE', by_end, '-inf', clock.now_text, 'LIMIT', 0, MOST_ENDED)
local counts = ended and calls.attempt('HMGET', bytes_by_name, '', namespace)
if counts then -- do nothing if the values belong to no user, or the keys are damaged
  local total, freed, is_freed = numbers.read(counts[1] or 0) or 0, 0, {}
  local of_namespace = numbers.read(counts[2] or 0) or 0
  if is_new then freed, of_namespace = of_namespace, 0 end -- the namespace had expired, so it is counted as a new one
  for _, list in ipairs({ ended, gone }) do
    for _, name in ipairs(list) do
      if name ~= namespace and not is_freed[name] then
        is_freed[name] = true
        freed = freed + (numbers.read(redis.call('HGET', bytes_by_name, name) or 0) or 0)
      end
    end
  end
  total = math.max(0, total - freed)
  if tonumber(most_bytes) > 0 and added > 0 and total + added > tonumber(most_bytes) then
    local reply = { numbers.exact(total), numbers.exact(total + added - tonumber(most_bytes)) }
    for _, name in ipairs(redis.call('ZRANGE', by_end, 0, MOST_NAMED - 1)) do
      reply[#reply + 1] = name
      reply[#reply + 1] = redis.call('HGET', bytes_by_name, name) or '0'
    end
    return reply
  end
  for _, name in ipairs(gone) do slot.touch(P .. 'xcom:' .. name) end
  slot.touch_all()
  redis.call('ZADD', by_end, numbers.exact(clock.now + left * 1000), namespace)
  redis.call('HSET', bytes_by_name, '', numbers.exact(math.max(0, total + added)), namespace, numbers.exact(math.max(0, of_namespace + added)))
  for name in pairs(is_freed) do
    redis.call('HDEL', bytes_by_name, name)
    redis.call('ZREM', by_end, name)
  end
  for _, name in ipairs(gone) do
    if is_freed[name] then counters.count('xcom_removed', redis.call('DEL', P .. 'xcom:' .. name)) end
  end
  for _, key in ipairs({ by_end, bytes_by_name }) do
    local longest = math.max(redis.call('PTTL', key), left)
    redis.call('PEXPIRE', key, numbers.exact(longest))
  end
end
redis.call('HSET', K.xcom, unpack(pairs_))
redis.call('PEXPIRE', K.xcom, numbers.exact(left))
if #gone > 0 then statistics.flush() end
return 1
