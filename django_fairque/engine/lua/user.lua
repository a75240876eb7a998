#!lua flags=allow-oom
-- Change what holds for one user. It acts at once, on the existing backlog too.
--
-- KEYS    base
-- ARGV    options, user, n, then n × (field, value or '' to remove it)
--         fields: weight (> 0), cap (running at once), paused (1), gap (us between tasks), burst (tasks), backlog, sla (us)
-- REPLY   1
-- COST    10 commands
-- include base user
local u = load_user(ARGV[A])
for i = 1, tonumber(ARGV[A + 1]) do
  local field, value = ARGV[A + 2 * i], tonumber(ARGV[A + 2 * i + 1])
  if field == 'weight' then
    -- What it is ahead of the virtual time was measured with the old weight.
    value = value or 1
    if u.tag > stat.vtime then set(u, 'tag', stat.vtime + (u.tag - stat.vtime) * u.weight / value) end
  end
  set(u, field, value)
  if field == 'gap' then
    set(u, 'tat', nil)
    if u.held then
      set(u, 'held', nil)
      zrem(K.throttled, u.name)
    end
  end
end
commit()
wake_if(ring_grew)
return 1
