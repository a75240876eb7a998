-- The rates of users, and the pauses of users and organizations.
--
-- include counters clock writes records

local rate = {}

-- A user that may start a task has a rate token. If the record disagrees, the server's clock was ahead and was set
-- back: ignore the record.
function rate.forget_step(user)
  if user.gap and user.tat then user.tat = math.min(user.tat, clock.now + user.gap * ((user.burst or 1) - 1)) end
end

function rate.hold_if_out_of_tokens(user)
  if not user.gap then return end
  local free = (user.tat or 0) - user.gap * ((user.burst or 1) - 1)
  if free > clock.now then
    records.set(user, 'held', free)
    writes.zadd(K.throttled, free, user.name)
    counters.note_due(free)
  end
end

-- `paused` is 1, or the moment at which the pause ends. A user is in `throttled` until its rate allows another task, or
-- otherwise until its pause ends; an organization is there until its pause ends. If the rate holds a paused user, the
-- end of the pause is checked afterwards. A command can also pass the length of a pause, as a negative number.
function rate.pause_end(value)
  value = tonumber(value)
  return value and value < 0 and clock.now - value or value
end
function rate.note_pause(one)
  if one.held then return end
  if (one.paused or 0) > 1 then
    writes.zadd(K.throttled, one.paused, one.entry)
    counters.note_due(one.paused)
  else
    writes.zrem(K.throttled, one.entry)
  end
end

local function hold_again(user)
  if user.held then
    records.set(user, 'held', nil)
    rate.hold_if_out_of_tokens(user)
    if not user.held then rate.note_pause(user) end
  else
    rate.hold_if_out_of_tokens(user)
  end
end

-- Give back the rate token of a task that was returned without a run. A task that was handed out before the user had a
-- rate used no token.
function rate.give_token_back(user, handed_out)
  if not (user.gap and user.tat) or handed_out < (user.rated or 0) then return end
  records.set(user, 'tat', user.tat - user.gap)
  hold_again(user)
end

-- Change the rate of a user, and keep the number of tokens that are in use. `gap` and `burst` are the previous values.
-- Without a rate, `last_gap` is the gap of the last rate. `hold` is the moment at which the throttled user would have
-- been free. This moment takes precedence over `tat`, which does not follow a clock that is set back. If more tokens
-- are in use than the new burst allows, the user is held for longer than one gap: `debt` (us) is the extra time.
function rate.change(user, gap, burst)
  if user.gap == gap and user.burst == burst then return end
  local hold = user.held and tonumber(redis.call('ZSCORE', K.throttled, user.name) or nil)
  local before, most = gap or user.last_gap, math.huge
  if gap and hold then
    most = hold + gap * ((burst or 1) - 1)
  elseif gap then
    most = clock.now + gap * (burst or 1)
  end
  local used = user.tat and before and math.max(0, math.min(user.tat, most) - clock.now) / before or 0
  if user.gap and not gap then
    used = math.min(used, user.burst or 1)
    records.set(user, 'rated', clock.now)
  end
  records.set(user, 'last_gap', not user.gap and before or nil)
  records.set(user, 'tat', used > 0 and clock.now + math.ceil(used * (user.gap or before)) or nil)
  local debt = user.gap and math.ceil((used - (user.burst or 1)) * user.gap) or 0
  records.set(user, 'debt', debt > 0 and debt or nil)
  hold_again(user)
end
