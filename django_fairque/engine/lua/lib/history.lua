-- include numbers calls keys lists clock

local history = {}

local HISTORY = 25 -- attempts kept per task

-- Add one line to the history of a task, which Python reads as an `Attempt`. If an attempt ended, `ran` is the task;
-- the line then has the moments at which the task became ready and started.
function history.add(id, kind, worker, err, trace, ran)
  local line = { clock.now_text, kind, worker or '', err or '', trace or '' }
  if ran and ran.started then line[6], line[7] = numbers.exact(ran.ready or ran.started), numbers.exact(ran.started) end
  calls.attempt('RPUSH', keys.history(id), lists.pack(line))
  calls.attempt('LTRIM', keys.history(id), -HISTORY, -1)
end
