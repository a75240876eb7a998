-- Select the next tasks: choose the next user in the ring (if the next entry is an organization, the next user in its
-- ring), then that user's most urgent task. Everything is read and decided here; nothing is written. Used by
-- lib/fetch.lua.
--
-- The calls from top to bottom: `selection.select`, `take_from` (for a list `take_from_list`), `turns.take`,
-- `take_turn` (one user), `next_task.take` (one task).
--
-- If the queue has several shards, each has its own virtual time, which stands still while the shard has no users to
-- serve or its users are far ahead. So the caller, which knows all shards, passes two positions, in this shard's scale.
-- `begin` is the virtual time of the queue: a user that has entered the ring since its last turn, with a tag below
-- `begin`, gets `begin` as its tag. `until_then` is the position of the next user on another shard: users beyond it
-- wait until that user was served. Its text begins with `+` if only newcomers wait on the other shard. For a list of
-- users there is no order of the shards; the callers count the amount taken on each shard.
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

-- Add the members of organizations that are in a list. Each member is served in the turns of its organization, which
-- keeps its usual position.
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
    local is_new = not organization.lines[lane] -- false if another part of the list has already added the organization
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

-- Add the users of a list. With `is_look`, one user that can be served is enough, because each user is read.
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
  list.allowed = list.weights > 0 and share * list.weights or math.huge -- infinite if no user of the list is in the ring
  for _, ring_owner in ipairs(list.credit.ring_owners) do list.begins[ring_owner] = list_credit.first(list.credit, ring_owner) end
  turns.take(list, limit)
  list_credit.take_off(list.credit)
end

-- Take tasks for one list of users, or for all users. ARGV contains, from index `at` on, the list's length (or '*') and
-- its members. `begin_text` and `until_text` are the two positions, or ''; for a list, `until_text` is the amount that
-- each user may get before another shard is next. With a limit of 0 nothing is taken, and only `is_left` is determined.
-- Returns for a list: `is_left`, whether a user that can be served is left, and `got`, the amount that each user
-- received. Returns for all users: `got`, the number of tasks, and `is_held_back`. Returns nil if no user was examined.
local function take_from(limit, at, begin_text, until_text, batch_sizes)
  -- Extend the bound by half a second, or 30 tasks. Without this, twice as many calls would be needed, each for one or
  -- two tasks of each user.
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

-- Take tasks for two lists, one after the other. The two positions apply to the last list that is not empty: the second
-- list is served only while no shard has users of the first list left. Returns the results of `take_from` for each
-- list.
function selection.select(limit, at, begin_text, until_text, batch_sizes)
  local second = at + 1 + (tonumber(ARGV[at]) or 0)
  if ARGV[at] == '*' or ARGV[second] == '0' then return { take_from(limit, at, begin_text, until_text, batch_sizes) } end
  local served_lists = { take_from(limit, at, '', '', batch_sizes) }
  served_lists[#served_lists + 1] = take_from(limit, second, begin_text, until_text, batch_sizes)
  return served_lists
end
