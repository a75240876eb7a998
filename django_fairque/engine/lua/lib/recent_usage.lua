-- What a user had lately: figures of two hours by the clock, this one and the one before, in its record.
--
-- `hour` is the hour that the record was last added to, `lately:0` and `lately:1` the worker time of even and odd
-- hours, `lately:0:7` how many tasks started in an even hour after a wait of bucket 7. When the hour turns, what
-- stands at its place is two hours old and begins at 0 again: set, not removed, which would be one more command.
-- Python reads them (lately.py).

local note_work, note_wait -- all else here is its own: a script has room for 200 names
do

local HOUR = 3600e6
local FIRST_WAIT = 10e3 -- bucket 0: shorter than 10 ms; each of the next is three times as wide
local LAST_BUCKET = 15  -- 13 hours and more

local WORKED, WAITED = {}, {}
for half = 0, 1 do
  WORKED[half], WAITED[half] = 'lately:' .. half, {}
  for index = 0, LAST_BUCKET do WAITED[half][index] = WORKED[half] .. ':' .. index end
end

local function empty(user, half)
  if user[WORKED[half]] then set(user, WORKED[half], 0) end
  for index = 0, LAST_BUCKET do
    if user[WAITED[half][index]] then set(user, WAITED[half][index], 0) end
  end
end

local function this_half(user)
  local hour = math.floor(now / HOUR)
  local half = hour % 2
  if user.hour ~= hour then
    empty(user, half)
    if user.hour and hour - user.hour ~= 1 then empty(user, 1 - half) end -- hours ago, or of a clock that was ahead
    set(user, 'hour', hour)
  end
  return half
end

function note_work(user, us)
  if us == 0 then return end
  local field = WORKED[this_half(user)]
  set(user, field, (user[field] or 0) + us)
end

function note_wait(user, us)
  local index, edge = 0, FIRST_WAIT
  while us >= edge and index < LAST_BUCKET do
    index, edge = index + 1, edge * 3
  end
  local field = WAITED[this_half(user)][index]
  set(user, field, (user[field] or 0) + 1)
end

end
