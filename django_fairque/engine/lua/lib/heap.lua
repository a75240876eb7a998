-- A binary heap by position.

local heap = {}

function heap.new() return { size = 0, position = {}, item = {} } end
function heap.push(entries, position, item)
  local positions, items, i = entries.position, entries.item, entries.size + 1
  entries.size = i
  while i > 1 do
    local parent = math.floor(i / 2)
    if positions[parent] <= position then break end
    positions[i], items[i] = positions[parent], items[parent]
    i = parent
  end
  positions[i], items[i] = position, item
end
function heap.pop(entries)
  local positions, items, size = entries.position, entries.item, entries.size - 1
  local item, at, position, last = items[1], positions[1], positions[size + 1], items[size + 1]
  entries.size = size
  local i = 1
  while true do
    local child = 2 * i
    if child > size then break end
    if child < size and positions[child + 1] < positions[child] then child = child + 1 end
    if position <= positions[child] then break end
    positions[i], items[i] = positions[child], items[child]
    i = child
  end
  positions[i], items[i] = position, last
  return item, at
end
