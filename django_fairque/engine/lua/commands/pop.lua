#!lua flags=allow-oom
-- Lease tasks to a worker in up to `limit` turns. A turn takes the most urgent task of the next user in the ring. If
-- that is a batch task, the turn takes up to a batch of the user's waiting tasks with that name.
--
-- KEYS    base reply leases
-- ARGV    options, limit (1..1000), worker, lease (us), woken (0/1), begin, until (lib/selection.lua; '' for none),
--         users ('*' or n and n ids), steal (the same); if the worker has batch tasks: their names and sizes, packed;
--         if it has reserved slots (then the sizes are there, '' for none): the most turns of lanes below urgent, and of lane bulk
-- REPLY   now (us), look (us: when something is due next), virtual time, place of whose turn it is next ('' for nobody's, or if
--         there are no other shards; of lists as `fetch.next_place` says), 1 if there are new messages for other shards,
--         then, if there are leases, their end (us) and 15 values of each: id, token, payload, user, name, priority, created (us), since when
--         it is ready (us; '' if that is `created`), max retries, timeout (us), deadline to start (us, an integer), expires (us), run, trace, and
--         what few have: '', or field and value in turns, packed (deliveries, which are 1 if this is '', retries, due, suspect: 1 for a suspect,
--         2 in quarantine)
-- COST    16 commands for one task, 5 a task in a batch over many users; with organizations of users 4 more for one, and for each
--         organization of a batch; with urgent or bulk tasks one more for each of these lanes, or for each lane in which the
--         user has tasks; the same for any number of users and organizations. For a list one more to read each of its users
--         that can be served, and some eight to write the credit of the list (lib/list_credit.lua)
-- include numbers counters clock outbox due_work fetch
local limit = tonumber(ARGV[FIRST_ARG])

due_work.start_if_due()
local reply = { numbers.exact(clock.now), '', '', '', '' }
local served_lists = fetch.hand_out(reply, limit, FIRST_ARG + 1)
reply[2], reply[3] = numbers.exact(counters.shard.look), numbers.exact(counters.shard.vtime)
reply[4], reply[5] = fetch.next_place(served_lists, limit, FIRST_ARG + 1), outbox.has_posted and '1' or '0'
return reply
