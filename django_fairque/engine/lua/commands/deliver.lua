#!lua
-- Accept the tasks of model events and of outbox rows, and count the events. A task of an outbox is accepted only once,
-- however often its row is read, even if the task has ended or was deleted meanwhile.
--
-- KEYS    base reply events
-- ARGV    options, how long it is remembered that a task was delivered (us; 0: these are of no outbox), n (0..1000), then
--         n × (event, times it fired, of them coalesced into an earlier one, times it failed, the last error or ''),
--         then the arguments of push.lua from "nonce kept" on, with 1 for it (its n may be 0)
-- REPLY   as push.lua; a task that was delivered before is accepted
-- COST    those of a push, 1 more a task of an outbox, 2 to 5 an event
-- include numbers keys clock push push_write
local remembered, events = tonumber(ARGV[FIRST_ARG]), tonumber(ARGV[FIRST_ARG + 1])
local at = FIRST_ARG + 2 + 5 * events
local size = tonumber(ARGV[at + 3])
local is_repeated = redis.call('EXISTS', K.reply) == 1
local ids, remembered_as, delivered = {}, {}, nil
if remembered > 0 and size > 0 then
  delivered = {}
  for i = 1, size do
    ids[i] = ARGV[at + push.ITEMS + (i - 1) * push.STRIDE]
    remembered_as[i] = keys.delivered(ids[i])
  end
  for i, value in ipairs(redis.call('MGET', unpack(remembered_as))) do delivered[ids[i]] = value end
end
local reply = push_write.accept(at, false, delivered)
local is_refused = string.find(reply[1], '%a')
if is_repeated or is_refused then return { numbers.exact(clock.now), unpack(reply) } end
for i, key in ipairs(remembered_as) do
  if push.codes[i] ~= 3 then redis.call('SET', key, '1', 'PX', numbers.exact(math.ceil(remembered / 1000))) end
end
for first = FIRST_ARG + 2, at - 1, 5 do
  local event = ARGV[first]
  for i, field in ipairs({ 'fired', 'coalesced', 'failed' }) do
    local times = tonumber(ARGV[first + i])
    if times > 0 then redis.call('HINCRBY', K.events, field .. ':' .. event, numbers.exact(times)) end
  end
  if tonumber(ARGV[first + 1]) > 0 then redis.call('HSET', K.events, 'last:' .. event, clock.now_text) end
  if ARGV[first + 4] ~= '' then redis.call('HSET', K.events, 'error:' .. event, ARGV[first + 4]) end
end
return { numbers.exact(clock.now), unpack(reply) }
