#!lua flags=allow-oom
-- Add to this hour's figures of task names: attempts that ended, those that failed, and run times by bucket.
--
-- A name beyond the most that are kept counts under the empty name.
--
-- KEYS    base reply
-- ARGV    options, most names, how long the figures are kept (us), n, then n × (name, m, then m × (kind, amount))
-- REPLY   1
-- COST    8 commands, 2 a name and 1 a figure
-- include numbers clock slot
if redis.call('GET', K.reply) then return 1 end
local key, at = P .. 'stats:names:' .. numbers.exact(math.floor(clock.now / 3600e6)), FIRST_ARG + 3
slot.touch(key)
slot.touch_all()
local names = tonumber(redis.call('HGET', key, 'names') or 0) or 0
for _ = 1, tonumber(ARGV[FIRST_ARG + 2]) do
  local name, figures = ARGV[at], tonumber(ARGV[at + 1])
  if redis.call('HEXISTS', key, 'attempts:' .. name) == 0 then
    if names >= tonumber(ARGV[FIRST_ARG]) then
      name = ''
    elseif name ~= '' then
      names = names + 1
    end
  end
  for i = at + 2, at + 2 * figures, 2 do redis.call('HINCRBY', key, ARGV[i] .. ':' .. name, ARGV[i + 1]) end
  at = at + 2 + 2 * figures
end
redis.call('HSET', key, 'names', numbers.exact(names))
redis.call('PEXPIRE', key, numbers.exact(tonumber(ARGV[FIRST_ARG + 1]) / 1000))
redis.call('SET', K.reply, '1', 'PX', 120000)
return 1
