#!lua flags=allow-oom
-- Change what holds for one user. It acts at once, on the existing backlog too.
--
-- KEYS    base
-- ARGV    options, user, n, then n × (field, value or '' to remove it)
--         fields: weight (> 0), cap (running at once), paused (1), rate (tasks, as it was written), gap (us between
--         tasks), burst (tasks that may start at once), backlog,
--         max_bytes (of its tasks that have not ended), sla (us), group (its name)
-- REPLY   1
-- COST    10 commands, 16 when it changes its group
-- include base ring organization user
-- Into another group, out of one, or into one, with all its work. What it is ahead of the others it stays, and a new
-- group is as far ahead as who founds it: moving to and fro makes nobody a newcomer. Of its running tasks the group that it
-- leaves pays for what they have used, the other for the rest.
local function change_group(u, name)
  if u.group == name then return end
  local ahead, in_ring = u.tag - u.floor.vtime, u.group and u.floor or u
  local ahead_in_ring = in_ring.tag - stat.vtime
  local used = elapsed(u)
  if u.group then
    add(u.floor, 'members', -1)
    account(u.floor, -u.run, -u.expected, -u.begun, used, -u.companions)
  end
  set(u, 'group', name)
  u.floor = floor_of(name)
  if name then
    local g = u.floor
    add(g, 'members', 1)
    account(g, u.run, u.expected, u.begun, -used, u.companions)
    if g.tag == -math.huge and ahead_in_ring >= 0 then set(g, 'tag', arrive(stat) + ahead_in_ring) end
  end
  begin_at(u, ahead >= 0 and arrive(u.floor) + ahead or -math.huge)
end

local u = load_user(ARGV[A])
if u.is_damaged then refuse_damaged(u.key) end
local gap, burst = u.gap, u.burst
for i = 1, tonumber(ARGV[A + 1]) do
  local field, value = ARGV[A + 2 * i], ARGV[A + 2 * i + 1]
  if field == 'group' then
    change_group(u, value ~= '' and value or nil)
  elseif field == 'weight' then
    reweigh(u, tonumber(value) or 1)
  else
    set(u, field, tonumber(value))
  end
end
if u.gap ~= gap or u.burst ~= burst then
  rate.change(u, gap, burst, u.held and tonumber(redis.call('ZSCORE', K.throttled, u.name) or nil))
end
touch_all()
commit()
wake_if(ring_grew)
return 1
