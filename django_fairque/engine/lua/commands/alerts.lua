#!lua flags=allow-oom
-- Return the oldest alerts for operators and remove them, so that each alert is sent once.
--
-- KEYS    base reply
-- ARGV    options, limit (1..1000)
-- REPLY   packed alerts, the oldest first: moment (us), kind (at_risk violated promoted died), task, user, name, priority,
--         detail (the deadline to start in us; of a promotion the priority before; of a death the reason)
-- COST    6 commands
-- include lists clock
local stored = redis.call('GET', K.reply)
if stored then return lists.unpack(stored) end
local found = redis.call('LPOP', K.alerts, tonumber(ARGV[FIRST_ARG])) or {}
if #found > 0 then redis.call('SET', K.reply, lists.pack(found), 'PX', 120000) end
return found
