-- Select the next tasks: the user that is next in the ring (in an organization's ring, if the next is an organization), then that
-- user's most urgent task. Everything is read and decided here; nothing is written. Used by lib/fetch.lua.
--
-- The calls: `selection.select`, `take_from`, for a list `take_from_list`, `turns.take`, `take_turn` (a user), `next_task.take` (its task).
--
-- If the queue has several shards, each keeps its own virtual time, which stands still while the shard has no users to
-- serve or its users are far ahead. So the caller, which knows all shards, passes two places (in this shard's
-- count): `begin`, the virtual time of the queue, is the tag of a user that has come since its last turn and
-- would start before it; `until_then` is the place of the next user on another shard: users beyond it wait until
-- that user was served. The text begins with `+` if only newcomers wait there. A list has no place among shards; the
-- callers count the amount taken on each.
--
-- include calls options counters ring organizations users lanes list_credit lines next_task turns

local selection = {}

local CHUNK = calls.CHUNK

local function line_up(list, one, place, lane)
  if not ring.can_start(one, lane) then return end
  lines.push(turns.line_of(list, lane), turns.place_since(one, place, lane), one)
  if list_credit.is_known(list.credit, one) then return end
  list_credit.note(list.credit, one, lane == 'normal' and place or one.tag)
  list.weights = list.weights + one.weight
end

-- Members of organizations that are in a list: each behind its organization, which stands where it always does.
local function line_up_members(list, names, lane)
  local members_of, standing, entries = {}, {}, {}
  for _, name in ipairs(names) do
    local user = users.load(name)
    local organization = user.ring_owner
    if user.group and ring.can_start(user, lane) and ring.can_start(organization, lane) then
      if not members_of[organization] then
        members_of[organization] = {}
        standing[#standing + 1], entries[#entries + 1] = organization, organization.entry
      end
      members_of[organization][#members_of[organization] + 1] = name
    end
  end
  if #standing == 0 then return end
  local places = redis.call('ZMSCORE', ring.lane_key(counters.shard, lane), unpack(entries))
  for i, organization in ipairs(standing) do
    organization.lines = organization.lines or {}
    local is_new = not organization.lines[lane] -- or other parts of the list have stood up already
    for n, at in ipairs(calls.attempt('ZMSCORE', ring.lane_key(organization, lane), unpack(members_of[organization])) or {}) do
      if at then
        local user = users.load(members_of[organization][n])
        lines.push(turns.members_of(organization, lane), tonumber(at), members_of[organization][n])
        if not list_credit.is_known(list.credit, user) then list_credit.note(list.credit, user, lane == 'normal' and tonumber(at) or user.tag) end
      end
    end
    if is_new and places[i] then line_up(list, organization, tonumber(places[i]), lane) end
  end
end

-- For a look the first of them will do: each is read.
local ALL, NORMAL = { 'urgent', 'normal', 'bulk' }, { 'normal' }
local function line_up_list(list, at, size, is_look)
  for first = at, at + size - 1, CHUNK do
    local last = math.min(first + CHUNK - 1, at + size - 1)
    local members = {}
    if counters.shard.groups > 0 then
      for i, is_member in ipairs(redis.call('ZMSCORE', K.grouped, unpack(ARGV, first, last))) do
        if is_member then members[#members + 1] = ARGV[first + i - 1] end
      end
    end
    for _, lane in ipairs(lanes.are_used() and ALL or NORMAL) do
      local places = redis.call('ZMSCORE', ring.lane_key(counters.shard, lane), unpack(ARGV, first, last))
      for i, place in ipairs(places) do
        if place then line_up(list, users.load(ARGV[first + i - 1]), tonumber(place), lane) end
        if is_look and place and turns.is_anyone_left(list) then return end
      end
      if members[1] then line_up_members(list, members, lane) end
    end
  end
end

local function take_from_list(list, limit, at, size, share)
  line_up_list(list, at, size, limit == 0)
  if limit == 0 then return end
  list.allowed = list.weights > 0 and share * list.weights or math.huge -- nobody of the list stands in the ring: at limits only
  for _, ring_owner in ipairs(list.credit.ring_owners) do list.begins[ring_owner] = list_credit.first(list.credit, ring_owner) end
  turns.take(list, limit)
  list_credit.take_off(list.credit)
end

-- A list of users in ARGV: its length (or '*') and then its members; the two places, or '' (of a list instead of the second how much
-- each of them may get before the next of the other shards is behind). With a limit of 0 it is only seen who is left. Returns of a
-- list: whether somebody `is_left` who can be served, and what each of them `got`; of all users: how many tasks they `got`, and
-- `is_held_back`; nil if nobody was looked at.
local function take_from(limit, at, begin_text, until_text, batch_sizes)
  -- Half a second further, or 30 tasks: calls would be twice as many, and fetch a task or two of each user.
  local only_newcomers, until_then = string.match(until_text, '^(%+?)(.*)$')
  local further = until_then ~= '' and tonumber(until_then) + (options.fair_by_tasks and 30 * ring.TASK_COST or 5 * ring.FIRST_COST) or math.huge
  local begin, size, before = tonumber(begin_text), tonumber(ARGV[at]) or 0, #turns.taken
  if ARGV[at] == '*' then
    local list = turns.new_list(true, begin, further, batch_sizes, limit)
    ring.note_others_elsewhere(until_then ~= '' and only_newcomers == '')
    turns.take(list, limit)
    return { is_held_back = list.is_held_back, got = #turns.taken - before }
  end
  if size == 0 or (limit > 0 and turns.is_full(limit)) then return nil end
  local list = turns.new_list(false, begin, math.huge, batch_sizes)
  list.names = {}
  for i = 1, size do list.names[i] = ARGV[at + i] end
  take_from_list(list, limit, at + 1, size, further)
  for _, organization in ipairs(organizations.order) do organization.lines = nil end
  return { is_left = turns.is_anyone_left(list) or next_task.skipped > 0, got = list.weights > 0 and list.given / list.weights or 0 }
end

-- Two lists, one after the other; the places are those of the last that there is: it is served while other shards have nobody of
-- the first. Returns what `take_from` returned of each.
function selection.select(limit, at, begin_text, until_text, batch_sizes)
  local second = at + 1 + (tonumber(ARGV[at]) or 0)
  if ARGV[at] == '*' or ARGV[second] == '0' then return { take_from(limit, at, begin_text, until_text, batch_sizes) } end
  local served_lists = { take_from(limit, at, '', '', batch_sizes) }
  served_lists[#served_lists + 1] = take_from(limit, second, begin_text, until_text, batch_sizes)
  return served_lists
end
