#!lua flags=allow-oom
-- Stop or resume the start of this shard's tasks. Pushes are accepted in any case.
--
-- KEYS    base
-- ARGV    options, paused (0; 1; the moment (us) at which the pause ends; or its length (us) as a negative number), its note ('' for none); then, if the
--         change depends on the present values, m and m × (field, value or '' for none)
-- REPLY   1; 0 if the present values differ, and nothing is changed
-- COST    6 commands
-- include counters clock statistics records ring rate
local note, present = ARGV[FIRST_ARG + 1], counters.shard.paused
if ARGV[FIRST_ARG + 2] then
  present = { paused = present > 0 and present or nil, pause_note = redis.call('HGET', K.stats, 'pause_note') or nil }
  if not records.has_expected(present, FIRST_ARG + 2) then return 0 end
end
if note ~= '' then redis.call('HSET', K.stats, 'pause_note', note) else redis.call('HDEL', K.stats, 'pause_note') end
counters.set('paused', rate.pause_end(ARGV[FIRST_ARG]))
if counters.shard.paused > 1 then counters.note_due(counters.shard.paused) end
statistics.flush()
ring.wake_if(counters.shard.paused == 0)
return 1
