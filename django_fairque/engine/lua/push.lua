#!lua
-- Accept tasks, each into the state it belongs to: QUEUED, SCHEDULED when its time has not come, DEFERRED while it
-- depends on tasks that have not finished.
--
-- A chosen id is an idempotency key while its task lives; a made-up id that is known already is this very call
-- repeated. With a nonce the first reply is kept, so that a repeated call answers as the first one did. A graph is
-- accepted as a whole or not at all.
--
-- KEYS    base reply
-- ARGV    options, nonce kept (0/1), run id or '', is a graph (0/1), n (1..2000), then n × (id, user, name, priority,
--         payload, chosen id (0/1), due us or '', expires us or '', max retries, timeout us or '', sla us or '',
--         unique key or '', unique for us or '', debounce us or ''); of a graph then the number of tasks with
--         dependencies, and for each its index, policy (wait cancel run), k, k ids; if some belong to a trace then their
--         number, and for each its index and trace
-- REPLY   now (us), codes (one digit per task: 1 accepted, 2 duplicate, 3 backlog full), then for each duplicate
--         under another id: its index, the id under which the work is known.
--         A refused graph: now, then 'missing' index id, or 'full' index, or 'cycle' ids, or 'size' id
-- COST    12 commands for one task, 2 a task in bulk, 5 a dependency
-- include base user task accept
return { exact(now), unpack(accept(A)) }
