"""`Worker` runs tasks in the calling process, without a supervisor."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from django_fairque.conf import FairQueueConfig, WorkerConfig, get_config, get_queue
from django_fairque.conf.redis import close_client
from django_fairque.engine.model.errors import FairQueueError
from django_fairque.tasks import registry
from django_fairque.worker.common.log import logger
from django_fairque.worker.common.options import WorkerArguments, WorkerOptions, describe_users, unique_queues
from django_fairque.worker.common.status_board import StatusBoard
from django_fairque.worker.leases.heartbeat import DRAIN_COMMAND, STOP_COMMAND, worker_info, worker_status
from django_fairque.worker.leases.lease_renewal import LeaseRenewal, RenewedWorker
from django_fairque.worker.supervisor.core import Core
from django_fairque.worker.supervisor.separate_tasks import warn_about_isolated_tasks

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from django_fairque.engine.queue.queue import FairQueue

WAIT_END_SECONDS = 1.0
"""Seconds that threads have to end their waits for work before the worker exits without them."""
CLOSE_REPEAT_SECONDS = 0.2
"""Seconds after which the clients are closed again while a thread still waits for work. The thread may be passing on
the result of its wait."""


@contextmanager
def stop_at_signals(stop: Callable[[], object]) -> Iterator[None]:
    """Call ``stop`` at SIGTERM and SIGINT. Only handlers that Python or asyncio have set are replaced, and only in the
    main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {
        number: handler
        for number in (signal.SIGTERM, signal.SIGINT)
        if _is_default(handler := signal.getsignal(number))
    }
    for number in previous:
        signal.signal(number, lambda *_: stop())
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _is_default(handler: Any) -> bool:
    if handler in (signal.SIG_DFL, signal.default_int_handler):
        return True
    return getattr(getattr(handler, "func", None), "__module__", None) == "asyncio.runners"


def _make_queue(config: FairQueueConfig, client: Any, name: str) -> FairQueue:
    from django_fairque.engine.queue.queue import FairQueue

    return FairQueue(client, name, config.queue_config(name))


class Worker:
    """Runs tasks in threads of this process, and ``async def`` tasks on an event loop in another thread.

    ``queues`` are names of declared queues, or `FairQueue` objects; by default the configured ones. The ``arguments``
    are passed by name; missing arguments are taken from the configuration (`WorkerConfig`), whose rules also apply to
    arguments. Durations are seconds.

    In place of ``queues`` a `WorkerConfig` can be given, which is used instead of the project's, or a `FairQueueConfig`,
    whose ``worker`` and queues are used, on its server.

    - ``worker_id`` or ``id``: unique among all workers that live; a new one by default.
    - ``users``: the users to serve, ``"*"`` or user ids; ``steal``: other users to serve when none of these users has
      tasks.
    - ``concurrency``: how many tasks run at once.
    - ``reserve``: how many of these slots are never used by tasks of lower lanes, such as ``{"urgent": 1, "normal":
      2}``; none by default.
    - ``burst``: `run` returns when nothing can start now (tasks that are scheduled for later do not count); False by
      default.
    - ``max_tasks``, ``max_memory_mb``: `run` returns gracefully after this many tasks, or beyond this much memory; 0:
      never.
    - ``lease_seconds``: the length of a lease; ``poll_interval``: the longest sleep between wakeups; ``task_timeout``:
      the time limit of a task that has none; ``shutdown_timeout``: how long running tasks may go on after `stop`.
    - ``handler``: the dotted path of a callable for bare payloads.

    Raises `ConfigurationError` if a value can't be used, a queue is not declared, or a model event has mistakes, and
    `TypeError` for an unknown argument.

    Without `fairque_worker` a process has limits: a task that holds the interpreter lock for longer than a lease loses
    its lease, and no hard time limit can be enforced.
    """

    clients: Sequence[Any] = ()
    """Clients that are closed when the worker ends."""

    def __init__(
        self,
        queues: Sequence[str | FairQueue] | WorkerConfig | FairQueueConfig | None = None,
        **arguments: Unpack[WorkerArguments],
    ) -> None:
        registry.refuse_mistakes()
        given, make_queue = None, get_queue
        config = queues if isinstance(queues, WorkerConfig) else get_config().worker
        if isinstance(queues, FairQueueConfig):
            config = queues.worker
            client = queues.create_redis_client()
            self.clients = [client]
            make_queue = partial(_make_queue, queues, client)
        elif not (queues is None or isinstance(queues, WorkerConfig)):
            given = [get_queue(queue) if isinstance(queue, str) else queue for queue in unique_queues(queues)]
        self.options = WorkerOptions.from_arguments(
            config, None if given is None else [queue.name for queue in given], arguments
        )
        self.queues = given or [make_queue(name) for name in self.options.queues]
        self._core = Core(
            self.options,
            self.queues,
            StatusBoard.private(self.options.concurrency, sum(len(queue.shards) for queue in self.queues)),
            on_blocked=lambda _: self._lease_renewal.renew_now(self.options.worker_id),
            on_unknown=lambda _: self._lease_renewal.renew_now(self.options.worker_id),
        )
        self._lease_renewal = LeaseRenewal(
            self.queues, self.options, self._core.outages, self._core.signal_thread.announce, self._execute_command
        )
        self._deadline: float | None = None

    def run(self, *, handle_signals: bool = True) -> None:
        """Work until `stop`, or until a limit or the end of a burst is reached. Call it once.

        ``handle_signals`` (default: True) calls `stop` at SIGTERM and SIGINT, and at a second one gives back running tasks at
        once. Signals are handled only in the main thread, and a handler that the program has set stays.
        """
        with stop_at_signals(self._stop_at_signal) if handle_signals else nullcontext():
            self._run()

    def _run(self) -> None:
        core, options = self._core, self.options
        logger.debug("worker %s serves users %s", options.worker_id, describe_users(options.users))
        warn_about_isolated_tasks()
        self._lease_renewal.start()
        self._lease_renewal.add(
            RenewedWorker(
                options.worker_id, self._info, core.slot_pool.revoke, core.status_board.list_running, core.reconcile
            )
        )
        core.start()
        try:
            core.join(self._is_late)
        finally:
            core.stop()  # stop the threads also if a signal handler raised an exception here
            self._leave()

    def stop(self) -> None:
        """Begin to stop: fetch nothing more, give back tasks that have not begun, and wait for running tasks. Can be
        called from any thread.
        """
        self._core.stop()

    def _stop_at_signal(self) -> None:
        """Begin to stop at the first signal; give back running tasks at the second one."""
        if self._core.is_stopping:
            self._deadline = monotonic() - 1
        self.stop()

    def _execute_command(self, command: str) -> None:
        """Execute an operator's command."""
        logger.info("worker %s got the command to %s", self.options.worker_id, command)
        if command == STOP_COMMAND:
            self.stop()
        else:
            self._core.set_draining(is_draining=command == DRAIN_COMMAND)

    def _is_late(self) -> bool:
        if not self._core.is_stopping:
            return False
        self._deadline = self._deadline or monotonic() + self.options.shutdown_timeout
        late = monotonic() > self._deadline
        if late:
            logger.warning("some tasks did not end within %g s; they are given back", self.options.shutdown_timeout)
        return late

    def _leave(self) -> None:
        self._lease_renewal.remove(self.options.worker_id)
        self._lease_renewal.finish(1.0)
        for queue in self.queues:
            try:
                queue.release_worker(self.options.worker_id, reason="worker stopped", forget=True)
            except FairQueueError as error:  # noqa: PERF203 - each queue
                logger.warning("what was left could not be given back, it will be when its lease ends: %s", error)
        self._core.report_stopped()
        # Closing a client ends a wait for work. Repeat it, because a wait that was about to begin may open its
        # connection afterwards.
        until, goes_on = monotonic() + WAIT_END_SECONDS, bool(self.clients)
        while goes_on and monotonic() < until:
            self._close_clients()
            goes_on = self._core.join_waits(CLOSE_REPEAT_SECONDS)
        self._close_clients()

    def _close_clients(self) -> None:
        for client in self.clients:
            close_client(client)

    def _info(self) -> dict[str, str]:
        core = self._core
        status = worker_status(is_draining=core.is_draining, is_stopping=core.is_stopping)
        return worker_info(
            self.options,
            done=core.budget.finished,
            running=core.status_board.count_running(),
            status=status,
            unknown_tasks=core.unknown_tasks,
            blocked_by=core.blocked_by,
            activity=core.status_board.activity(),
        )
