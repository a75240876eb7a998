"""The queue on Redis or Valkey. Its state changes only inside the Lua scripts. This package does not import Django.

This text describes the engine's operations and their guarantees. The operations are methods of `FairQueue`, `AsyncFairQueue`,
and their parts ``dlq``, ``schedules``, ``user()``, ``organization()`` and ``limit()``. ``lua/commands/`` has one script per
command; the script's first comment is its contract. ``lua/README.md`` lists the keys.

Guarantees of all operations
----------------------------

- Atomicity: a script call is carried out as a whole, or not at all. A script reads and decides first, then it writes, additions
  before removals. If a script nevertheless ends between two writes (because a key is damaged, or a cluster moves its slot), an
  index can disagree with a task's record, but no task is lost, and `FairQueue.repair` fixes the index. An operation that works
  "in slices" makes several calls. If one of them fails, the slices before it stay done.
- Shards: a call concerns one shard. An operation on several shards calls one after the other. `ShardsAwayError` names the
  shards that could not be reached; the operation is done on the others.
- Lost replies: a call whose reply is lost is repeated for ``request_timeout`` seconds (10 by default). The call carries a nonce
  or a lease token, or it can be repeated without harm, so the repetition changes nothing and gets the first reply. The server
  keeps replies for 120 seconds (for a shorter time if they would take more than 32 MB). If the last repetition fails too,
  `RedisConnectionError` is raised, and the caller does not know whether the call was carried out. "Repeat" below describes
  the effect of calling again.
- Durability: written data are as safe as the server's persistence. With ``replicas_to_confirm``, pushes wait for replicas
  and raise `NotReplicatedError` if too few of them confirm.
- Errors: `TaskValidationError` for an argument that can't be used, before anything is written. `ServerRefusedError` if the
  server refuses: a full server refuses push, deliver, requeue, schedules, progress and values of ``xcom()``, and nothing else,
  so that it drains.
- Cost: the number of server commands inside the script. The cost does not grow with the size of the queue unless "Cost" below
  says so.

Push
----

``push``
    Accepts a task: QUEUED, SCHEDULED if its time has not come, DEFERRED if it waits for others. Once it returns the task is
    not lost. Repeat: with the same `Task`, whose id was made by `Task.create`, it is accepted once, as long as it is known.
    With a chosen id it is a duplicate while the first task has not ended; afterwards it replaces that task. Cost: 12.
    Errors: `BacklogFullError`, `TaskIdConflictError`.
``push_batch``
    Accepts many tasks, in slices of ``pipeline_batch_size``. Each slice is atomic; a refused task does not prevent the
    others. The tasks of one user and priority keep their order. Repeat: as ``push``, for each task. Cost: 2 a task.
    Errors: as ``push``, at the end, with all results.
``push_graph``
    Accepts tasks that depend on each other: all, or none and an error. Parts on other shards are written down with the
    first part, and carried there as messages. Repeat: as ``push``. Cost: 2 a task, 5 a dependency.
    Errors: `DependencyCycleError`, `TaskNotFoundError`, and those of ``push``.
``deliver``, ``forget_delivered``
    Accept rows of a database's outbox, and count model events, in one call per shard. Repeat: with ``from_outbox`` an id is
    accepted once, whatever has become of its task. Cost: that of a push, 1 more a task, 2 to 5 an event.

Fetch and settle
----------------

``pop``, ``pop_batch``
    Lease the most urgent tasks of the users whose turn it is. A task has one current lease. Its token is greater than all
    earlier ones of the shard. Repeat: leases other tasks. The lost leases end by themselves, or ``reconcile_worker`` gives
    them back. Cost: 16 for one task, 6 a task in a batch over many users.
``settle`` (``finish``, ``fail``, ``release`` for one task)
    Reports outcomes and leases the next tasks, in one call. Each outcome counts only with the task's current token, so that
    a task ends once however many workers have run it. Repeat: the outcome is recognized by its token and answered as the
    first time; the fetch leases other tasks. Cost: 3 an outcome, 3 a user, and that of a pop. Errors: `StaleLeaseError` from
    ``finish``, ``fail`` and ``release``; ``settle`` returns the status "stale".
``renew``, ``heartbeat``, ``take_over``
    ``renew`` extends leases that are still current, ``heartbeat`` all leases of a worker; ``take_over`` moves a lease to
    another worker, with its token. A lease that is not current is left alone. Repeat: harmless. Cost: 1 a lease and 3; 12,
    and 1 a lease that the worker holds; 9.
``release_worker``, ``reconcile_worker``
    Give back, in slices, all leases of a worker that has died, or the leases that a worker does not hold. Only tasks that the
    worker was running when it died count as delivered. Repeat: gives back the remaining leases, also leases that were handed
    out meanwhile and are not named. Cost: 10 a lease that is given back (``reconcile_worker``: 1 more for each lease that the
    worker holds, and 4).
``set_worker_command``
    Stores a command for a worker, which gets it with each heartbeat. Repeat: harmless. Cost: 4.
``set_progress``
    Records the progress of a leased task. Repeat: harmless. Cost: 4. Errors: `StaleLeaseError`.
``logs.record``
    Records the log lines of an attempt, in place of those recorded before. Repeat: harmless. Cost: 6. Errors: `StaleLeaseError`.

Maintenance
-----------

``sweep``
    Does one bounded round: starts scheduled tasks that are due, reaps leases that have ended (their tasks are queued again,
    or become dead letters after ``max_deliveries``), expires and promotes tasks, and forgets ended ones. Any number of
    processes may call it at any time: each change happens once. Repeat: harmless. Cost: 18 if nothing is due; at most
    ``sweep_batch_size`` tasks of each kind.
``repair``
    Compares indexes and counters with the tasks' records, which count, and corrects them, in slices. Each fix checks again
    first. Repeat: harmless. Cost: reads every key, and 25 a fix.
``carry_messages``
    Carries messages between shards: parts of graphs, questions, ended dependencies. A message is removed after it was
    applied, and applying it again changes nothing. Repeat: harmless. Cost: 2 to 3 a message, and that of its contents.
``take_alerts``
    Hands out alerts, each once. Repeat: hands out the next ones; alerts in a reply that was lost for good are lost. Cost: 6.

Operate
-------

``cancel``, ``cancel_many``, ``cancel_run``, ``purge``
    End tasks that have not ended, and those that depend on them; ``cancel`` in one call, the others in slices. A running
    task loses its lease. Repeat: tasks that have ended are left alone. Cost: 9 a task. Errors: `TaskNotFoundError` from
    ``cancel`` and ``cancel_run``.
``run_now``, ``ignore_dependencies``
    ``run_now`` queues SCHEDULED tasks at once, in slices; ``ignore_dependencies`` lets a DEFERRED task go on.
    Repeat: harmless. Cost: 10 a task, 3 a dependency.
``dlq.requeue``, ``dlq.discard``
    Queue a dead letter again, with new retries and its history; make it CANCELED. An entry's id contains the number of times
    that its task became a dead letter, so a repeated call never concerns a later dead letter of the task. The methods for many
    entries work in slices. Repeat: `TaskNotFoundError`, or not counted. Cost: 8; 5 an entry.
``dlq.cleanup``
    Forgets dead letters, in slices. Repeat: harmless. Cost: 1 a task and 2.
``pause``, ``resume``, ``user().set_…``, ``organization().set_…``, ``change_if``
    Change the settings of the queue, a user or an organization. Changes take effect at once, also for tasks that are waiting.
    ``change_if`` compares first, in the same call. Repeat: harmless. Cost: 4; 10 (16 for another organization); 8.
``limit().close``, ``limit().open``
    Let no task of a limit by key start, until a moment or until it is opened; running tasks go on. Repeat: harmless. Cost: 12.
``schedules.add``, ``schedules.remove``
    Keep or remove a schedule. A change is refused and tried again if another process has changed the schedule meanwhile.
    Repeat: harmless. Cost: 5.
``schedules.fire_due``
    Pushes tasks of schedules that are due. A run time is fired once among any number of processes: its task's id contains
    it. Repeat: harmless. Cost: 6, and that of a push.
``schedules.report_version``, ``schedules.declare``
    Decide which version's declared schedules count; make the declared schedules agree with those of that version. A change for
    a version is refused when a newer one counts. Repeat: harmless. Cost: 6; 8 a schedule that changes, and reads all.
``xcom().push``
    Keeps values: all of a call or none. Repeat: harmless. Cost: 4; 9 if they count for a user. Errors: `TaskValidationError`
    beyond 1000 keys, or ``max_xcom_bytes`` of runs that have not ended.
``reshard``
    Moves a drained queue to another number of shards; the number is written down last. Repeat: completes an interrupted
    call. Cost: grows with users and schedules. Errors: `QueueNotDrainedError`.
"""
