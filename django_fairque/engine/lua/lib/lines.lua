-- The users of a ring that can be served, in two groups: newcomers and others. Before a user's turn, only its entry in
-- the ring is read, because most calls serve few users.
--
-- include calls ring organizations users heap

local lines = {}

local push = heap.push -- called often

-- Users are read in pages of `step`. In the ring's order newcomers come first, and a page mostly contains the first of
-- the other users too. `at` is the number of entries that were read, `others_read` is the number of those that are no
-- newcomers, and `last` is the tag of the last of these. Without a key nothing is read.
function lines.new(key, step)
  return {
    key = key, step = step, newcomers = heap.new(), others = heap.new(), at = 0, others_read = 0, last = -math.huge,
    has_all_newcomers = not key, has_all = not key,
  }
end

function lines.push(line, place, item) push(place < 0 and line.newcomers or line.others, place, item) end

-- Read the next page, and add the names of its users to `names`. Their records can then be read with one command.
local function read_page(line, names, of_others)
  local call, found, others, organization = line.key == K.ring and redis.call or calls.attempt, nil, 0, string.byte(organizations.PREFIX)
  if of_others then
    found, others = call('ZRANGEBYSCORE', line.key, 0, '+inf', 'WITHSCORES', 'LIMIT', line.others_read, line.step) or {}, line.others_read
  else
    found = call('ZRANGE', line.key, line.at, line.at + line.step - 1, 'WITHSCORES') or {}
    line.at = line.at + line.step
  end
  for i = 1, #found, 2 do
    local place = tonumber(found[i + 1])
    if string.byte(found[i]) ~= organization then names[#names + 1] = found[i] end
    if place >= 0 then others = others + 1 end
    if place < 0 then
      push(line.newcomers, place, found[i])
    elseif others > line.others_read then
      line.others_read, line.last = others, place
      push(line.others, place, found[i])
    end
  end
  local is_end = #found < 2 * line.step
  line.has_all = line.has_all or is_end
  line.has_all_newcomers = line.has_all_newcomers or others > 0 or is_end
end

-- Read the first page, and add the names of its users to `names`. Return the first position, or nil if there are no
-- users.
function lines.read_first(line, names)
  if line.at == 0 then read_page(line, names) end
  return line.newcomers.place[1] or line.others.place[1]
end

local function read_next(line, of_others)
  local names = {}
  read_page(line, names, of_others)
  users.preload(names)
end

-- Return the group (newcomers or others) whose first user is next, and the position of that user: its tag, or for a
-- newcomer the tag up to which others go first. `is_in_turn` is false for a list of users: then no user is overdue.
function lines.next(line, ring_owner, is_in_turn)
  local newcomers, others, turn = line.newcomers, line.others, nil
  if newcomers.size == 0 and not line.has_all_newcomers then read_next(line) end
  if newcomers.size > 0 then
    turn = ring.newcomers_turn(ring_owner)
    if not is_in_turn or turn <= ring_owner.vtime then return newcomers, turn end
  end
  while not line.has_all and (others.size == 0 or others.place[1] > line.last) do read_next(line, true) end
  local first = others.size > 0 and others.place[1]
  if turn and not (first and first < turn) then return newcomers, turn end
  if first then return others, first end
end
