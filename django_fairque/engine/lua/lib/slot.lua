-- Touches keys before the first write. If a cluster slot has moved to another node, the first use of its keys ends the
-- script with an error. So a script uses each derived key that it will write once before its first write, all of them
-- in one command.
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
