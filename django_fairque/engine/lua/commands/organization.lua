#!lua flags=allow-oom
-- Change what holds for a group of users. It acts at once, on the existing backlog too.
--
-- KEYS    base
-- ARGV    options, group, n, then n × (field, value or '' to remove it)
--         fields: weight (> 0), cap (running at once, of all members together), paused (1)
-- REPLY   1
-- COST    8 commands
-- include base ring organization user
local g = load_group(ARGV[A])
for i = 1, tonumber(ARGV[A + 1]) do
  local field, value = ARGV[A + 2 * i], tonumber(ARGV[A + 2 * i + 1])
  if field == 'weight' then reweigh(g, value or 1) else set(g, field, value) end
end
commit()
wake_if(ring_grew)
return 1
