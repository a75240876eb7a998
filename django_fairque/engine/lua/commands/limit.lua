#!lua flags=allow-oom
-- Close a limit, so that none of its tasks starts, or open it again. Tasks that are running continue.
--
-- KEYS    base
-- ARGV    options, id of the limit, act (close or open), of close until when (us; '' for until it is opened, a negative number for this time)
-- REPLY   1
-- COST    12 commands
-- include clock slot records ring users limits rate saving
local limit = limits.load(ARGV[FIRST_ARG])
local moment = ARGV[FIRST_ARG + 1] == 'close' and (rate.pause_end(ARGV[FIRST_ARG + 2]) or clock.NEVER) or nil
records.set(limit, 'closed', moment)
limits.reconsider(limit.id, users.load)
slot.touch_all()
saving.commit()
ring.wake_if(ring.has_grown)
return 1
