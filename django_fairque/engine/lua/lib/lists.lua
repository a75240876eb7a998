-- Pack a list of byte strings into one string ("3:abc0:...") and unpack it. Any bytes are allowed, and nothing is
-- escaped.

local lists = {}

function lists.pack(list)
  local parts = {}
  for i = 1, #list do -- a string for each part would take as much time as handing out a task
    parts[3 * i - 2], parts[3 * i - 1], parts[3 * i] = #list[i], ':', list[i]
  end
  return table.concat(parts)
end
function lists.unpack(text)
  local list, at = {}, 1
  while at <= #text do
    local colon = string.find(text, ':', at, true)
    local size = tonumber(string.sub(text, at, colon - 1))
    if size < 0 then error('expected a packed list, got a part of ' .. size .. ' bytes') end -- a negative length would make the loop endless
    list[#list + 1] = string.sub(text, colon + 1, colon + size)
    at = colon + size + 1
  end
  return list
end
