#!lua flags=allow-oom
-- Change the settings of an organization of users. The change acts at once, also on waiting tasks.
--
-- KEYS    base
-- ARGV    options, organization, n, then n × (field, value or '' to remove it)
--         fields: weight (> 0), cap (running at once, of all members together), paused (1,
--         the moment (us) of the pause's end, or the pause's length (us) as a negative number), pause_note,
--         share (0.01 to 0.9); then, if the change depends on the present values, m and m × (field, value or '' for none)
-- REPLY   1; 0 if the present values differ, and nothing is changed; if the shares of the shard would be too large together, the names and shares of the others, and nothing has changed
-- COST    8 commands, 9 when a pause has an end, 3 more and one for each other share when it sets one
-- include clock records ring organizations rate saving guarantees
local organization = organizations.load(ARGV[FIRST_ARG])
if not records.has_expected(organization, FIRST_ARG + 2 + 2 * ARGV[FIRST_ARG + 1]) then return 0 end
local paused = organization.paused
for i = 1, tonumber(ARGV[FIRST_ARG + 1]) do
  local field, value = ARGV[FIRST_ARG + 2 * i], ARGV[FIRST_ARG + 2 * i + 1]
  if field == 'weight' then
    ring.change_weight(organization, tonumber(value) or 1)
  elseif field == 'share' then
    local others = guarantees.set_share(organization, tonumber(value))
    if others then return others end
  elseif field == 'pause_note' then
    records.set(organization, field, value ~= '' and value or nil)
  else
    records.set(organization, field, field == 'paused' and rate.pause_end(value) or tonumber(value))
  end
end
if math.max(organization.paused or 0, paused or 0) > 1 then rate.note_pause(organization) end
saving.commit()
ring.wake_if(ring.has_grown)
return 1
