#!lua flags=allow-oom
-- Change the settings of one user. The change acts at once, also on waiting tasks.
--
-- KEYS    base
-- ARGV    options, user, n, then n × (field, value or '' to remove it)
--         fields: weight (> 0), cap (running at once), paused (1,
--         the moment (us) of the pause's end, or the pause's length (us) as a negative number), pause_note, rate (tasks, as it was written), gap (us between
--         tasks), burst (tasks that may start at once), backlog,
--         max_bytes (of its tasks that have not ended), sla (us), organization (its name), plan (as in lib/plans.lua), chosen_plan (one
--         that the pushes don't change), explicit (limits that no plan changes; '' removes the plan and all limits); then, if the change depends on
--         the present values, m and m × (field, value or '' for none)
-- REPLY   1; 0 if the present values differ, and nothing is changed
-- COST    10 commands, 16 when it changes its organization; one more for a pause with an end
-- include calls counters clock slot records ring organizations users rate plans saving
-- Move a user with all its tasks into an organization, out of an organization, or from one organization to another. The
-- distance between the user's tag and the virtual time stays the same, and a new organization gets the distance of its
-- first member. So a user that moves back and forth does not become a newcomer. For running tasks, the old organization
-- is charged for the time used until now, and the new one for the rest.
local function change_group(user, name)
  if user.group == name then return end
  local ahead, in_ring = user.tag - user.ring_owner.vtime, user.group and user.ring_owner or user
  local urgent_ahead = user.urgent_tag and user.urgent_tag - user.ring_owner.vtime
  local ahead_in_ring = in_ring.tag - counters.shard.vtime
  local used = ring.elapsed(user)
  if user.group then
    records.add(user.ring_owner, 'members', -1)
    ring.account(user.ring_owner, -user.run, -user.expected, -user.start, used, -user.companions)
  end
  records.set(user, 'group', name)
  user.ring_owner = organizations.ring_owner(name)
  if name then
    local organization = user.ring_owner
    records.add(organization, 'members', 1)
    ring.account(organization, user.run, user.expected, user.start, -used, user.companions)
    if organization.tag == -math.huge and ahead_in_ring >= 0 then records.set(organization, 'tag', ring.arrive(counters.shard) + ahead_in_ring) end
  end
  ring.begin(user, ahead >= 0 and ring.arrive(user.ring_owner) + ahead or -math.huge)
  if urgent_ahead then records.set(user, 'urgent_tag', user.ring_owner.vtime + math.max(0, urgent_ahead)) end
end

local user = users.load(ARGV[FIRST_ARG])
if user.is_damaged then calls.refuse_damaged(user.key) end
if not records.has_expected(user, FIRST_ARG + 2 + 2 * ARGV[FIRST_ARG + 1]) then return 0 end
local gap, burst, paused = user.gap, user.burst, user.paused
for i = 1, tonumber(ARGV[FIRST_ARG + 1]) do
  local field, value = ARGV[FIRST_ARG + 2 * i], ARGV[FIRST_ARG + 2 * i + 1]
  if field == 'group' then
    change_group(user, value ~= '' and value or nil)
  elseif field == 'pause_note' then
    records.set(user, field, value ~= '' and value or nil)
  elseif field == 'paused' then
    records.set(user, field, rate.pause_end(value))
  elseif field == 'explicit' then
    if value == '' then plans.reset(user) else records.set(user, field, value) end
  elseif field == 'plan' or field == 'chosen_plan' then
    plans.apply(user, value)
    records.set(user, 'plan_looked_up', clock.now)
    if field == 'chosen_plan' then plans.mark_explicit(user, 'plan') end
  else
    plans.set_limit(user, field, tonumber(value))
    if user.plan then plans.mark_explicit(user, field) end
  end
end
rate.change(user, gap, burst)
if math.max(user.paused or 0, paused or 0) > 1 then rate.note_pause(user) end
slot.touch_all()
saving.commit()
ring.wake_if(ring.has_grown)
return 1
