#!lua
-- Fire a schedule at one of its run times, once. The call does nothing if the run time or the definition has changed
-- since the caller read it. So no lock is needed, and a caller that is frozen or killed at any point can't make the
-- schedule fire twice.
--
-- KEYS    base reply schedules schedules:due schedules:last schedules:runs
-- ARGV    options, name, definition, run time (us), next (us or '' when there is none), what to remember of this firing
--         (opaque; '' to remember nothing), the latest runs (opaque), then the arguments of push.lua from "nonce kept"
--         on (n may be 0)
-- REPLY   1 fired, 0 not this run time's turn (any more), 2 not now: the user's backlog is full, or the task to wait for is forgotten, 3 a full limit
--         refuses the task (at_limit="skip"): nothing was written
-- COST    7 commands, and those of a push
-- include clock push_write
local name, run_time = ARGV[FIRST_ARG], ARGV[FIRST_ARG + 2]
local due = redis.call('ZSCORE', K['schedules:due'], name)
if not due or tonumber(due) ~= tonumber(run_time) then return 0 end
if redis.call('HGET', K.schedules, name) ~= ARGV[FIRST_ARG + 1] then return 0 end
local reply = push_write.accept(FIRST_ARG + 6, true) -- the stored task is fired unchanged, because this script has no key with which to sign another task
if reply[1] == '5' or reply[1] == 'limited' then return 3 end
if string.find(reply[1], '^[3%a]') then return 2 end
if ARGV[FIRST_ARG + 3] == '' then
  redis.call('ZREM', K['schedules:due'], name)
else
  redis.call('ZADD', K['schedules:due'], ARGV[FIRST_ARG + 3], name)
end
if ARGV[FIRST_ARG + 4] ~= '' then redis.call('HSET', K['schedules:last'], name, ARGV[FIRST_ARG + 4]) end
redis.call('HSET', K['schedules:runs'], name, ARGV[FIRST_ARG + 5])
return 1
