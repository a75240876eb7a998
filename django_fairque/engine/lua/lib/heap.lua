-- A binary heap. The item with the lowest `place` comes first.

local heap = {}

function heap.new() return { size = 0, place = {}, item = {} } end
function heap.push(entries, place, item)
  local places, items, i = entries.place, entries.item, entries.size + 1
  entries.size = i
  while i > 1 do
    local parent = math.floor(i / 2)
    if places[parent] <= place then break end
    places[i], items[i] = places[parent], items[parent]
    i = parent
  end
  places[i], items[i] = place, item
end
function heap.pop(entries)
  local places, items, size = entries.place, entries.item, entries.size - 1
  local item, at, place, last = items[1], places[1], places[size + 1], items[size + 1]
  entries.size = size
  local i = 1
  while true do
    local child = 2 * i
    if child > size then break end
    if child < size and places[child + 1] < places[child] then child = child + 1 end
    if place <= places[child] then break end
    places[i], items[i] = places[child], items[child]
    i = child
  end
  places[i], items[i] = place, last
  return item, at
end
