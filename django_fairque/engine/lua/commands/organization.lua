#!lua flags=allow-oom
-- Change what holds for an organization of users. It acts at once, on the existing backlog too.
--
-- KEYS    base
-- ARGV    options, organization, n, then n × (field, value or '' to remove it)
--         fields: weight (> 0), cap (running at once, of all members together), paused (1)
-- REPLY   1
-- COST    8 commands
-- include base ring organization user
local organization = load_organization(ARGV[FIRST_ARG])
for i = 1, tonumber(ARGV[FIRST_ARG + 1]) do
  local field, value = ARGV[FIRST_ARG + 2 * i], tonumber(ARGV[FIRST_ARG + 2 * i + 1])
  if field == 'weight' then reweigh(organization, value or 1) else set(organization, field, value) end
end
commit()
wake_if(ring_grew)
return 1
