-- The figures of this hour by task name. A name beyond the most that are kept counts under the empty name.
--
-- include numbers clock slot

local task_names = {}

local MOST, KEPT = 100, 26 * 3600e3 -- ms: a day, the current hour, and one more
local function key_of_hour() return P .. 'stats:names:' .. numbers.exact(math.floor(clock.now / 3600e6)) end

function task_names.touch() slot.touch(key_of_hour()) end

-- Add figures: kinds and amounts.
function task_names.add(name, figures)
  local key = key_of_hour()
  if name ~= '' and redis.call('HEXISTS', key, 'attempts:' .. name) == 0 and redis.call('HINCRBY', key, 'names', 1) > MOST then
    redis.call('HINCRBY', key, 'names', -1)
    name = ''
  end
  for i = 1, #figures, 2 do redis.call('HINCRBY', key, figures[i] .. ':' .. name, figures[i + 1]) end
  redis.call('PEXPIRE', key, numbers.exact(KEPT))
end
