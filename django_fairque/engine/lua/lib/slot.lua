-- A derived key that moved away with its cluster slot ends a script at its first use. So every derived key that will be
-- written is used once before the first write, all of them in one command.
--
-- include calls

local slot = {}

local CHUNK = calls.CHUNK

local touched = {}
each_call(function()
  if touched[1] then touched = {} end
end)
function slot.touch(key) touched[#touched + 1] = key end
function slot.touch_all()
  for first = 1, #touched, CHUNK do
    redis.call('EXISTS', unpack(touched, first, math.min(first + CHUNK - 1, #touched)))
  end
  if touched[1] then touched = {} end
end
