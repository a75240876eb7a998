#!lua flags=allow-oom
-- Change what holds for one user. It acts at once, on the existing backlog too.
--
-- KEYS    base
-- ARGV    options, user, n, then n × (field, value or '' to remove it)
--         fields: weight (> 0), cap (running at once), paused (1), gap (us between tasks), burst (tasks), backlog, sla (us),
--         group (its name)
-- REPLY   1
-- COST    10 commands, 16 when it changes its group
-- include base ring group user
local u = load_user(ARGV[A])
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
if u.gap ~= gap or u.burst ~= burst then -- said again it is no new rate: what was used of it is used
  set(u, 'tat', nil)
  if u.held then
    set(u, 'held', nil)
    zrem(K.throttled, u.name)
  end
end
touch_all()
commit()
wake_if(ring_grew)
return 1
