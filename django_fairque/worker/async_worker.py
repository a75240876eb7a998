"""`AsyncWorker`: runs tasks on the event loop that it is awaited on.

The decisions are those of the threaded worker (`lane`, `budget`, `collector`); here is only what awaits.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import TYPE_CHECKING, Any

from django_fairque import signals
from django_fairque.conf import get_config
from django_fairque.engine.model.errors import ConfigurationError, TaskNotFoundError
from django_fairque.engine.queue.async_queue import AsyncFairQueue
from django_fairque.worker.execution.event_loop import ProtectedTask, Stoppable, cancel_all, extend_others, protected
from django_fairque.worker.execution.isolation import CoroutineContexts
from django_fairque.worker.execution.loop_monitor import LoopMonitor
from django_fairque.worker.fetching.async_fetcher import AsyncFetcher
from django_fairque.worker.fetching.shard_places import shard_places_of
from django_fairque.worker.fetching.slot_budget import SlotBudget
from django_fairque.worker.leases.operator_commands import DRAIN_COMMAND, STOP_COMMAND
from django_fairque.worker.leases.worker_record import worker_info, worker_status
from django_fairque.worker.options import WorkerOptions, each_once
from django_fairque.worker.reporting.log import logger
from django_fairque.worker.reporting.signal_thread import SignalThread
from django_fairque.worker.supervisor.separate_tasks import warn_about_isolated_tasks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Unpack

    from django_fairque.engine.model.task import Task
    from django_fairque.worker.execution.loop_monitor import BlockedLoop
    from django_fairque.worker.options import WorkerArguments

FIND_TASK_SECONDS = 30.0
"""Seconds for looking at a task on the loop: it may have ended meanwhile, and then nothing answers any more."""
LOOP_CHECK_SECONDS = 0.5
LOOP_CANCEL_REPEAT_SECONDS = 0.5
TASK_CANCEL_REPEAT_SECONDS = 5.0
"""Seconds after which what was canceled and has not ended is canceled again; tasks may have something to tidy up."""


class MonitorThread(threading.Thread):
    """Reports when a task blocks the running event loop. As the worker itself runs on that loop, it can do no more until the loop
    goes on; then what has not begun is given back, as it may have been handed to another worker meanwhile."""

    def __init__(self, fetchers: Sequence[AsyncFetcher]) -> None:
        super().__init__(name="fairque-loop-monitor", daemon=True)
        self._fetchers = fetchers
        self._ended = threading.Event()
        self._host = threading.get_ident()
        self._monitor = LoopMonitor(asyncio.get_running_loop(), self)

    def run(self) -> None:
        while not self._ended.wait(LOOP_CHECK_SECONDS):
            if self._monitor.check(monotonic()):
                self._report(self._monitor.blocked)

    def end(self) -> None:
        self._ended.set()

    @property
    def thread_id(self) -> int:
        return self._host

    @property
    def is_used(self) -> bool:
        return any(fetcher.running for fetcher in self._fetchers)

    def coroutines(self) -> Sequence[Stoppable]:
        return [each for fetcher in self._fetchers for each in tuple(fetcher.coroutines)]

    def give_back_waiting(self) -> None:
        """Nothing: that would take the loop."""

    def resumed(self, seconds: float, culprit: object) -> None:
        extend_others(self.coroutines(), seconds, culprit)
        for fetcher in self._fetchers:
            fetcher.planner.give_back_waiting()
            fetcher.wakeup.set()

    @staticmethod
    def _report(blocked: BlockedLoop | None) -> None:
        if blocked is None:
            logger.warning("the event loop of this worker goes on")
        else:
            logger.error(
                "the event loop of this worker has been blocked for %.1f s by %s; until then, nothing is fetched and no lease "
                "is renewed. Call blocking code with asyncio.to_thread, or define the task without async. The loop's stack:\n%s",
                *(blocked.seconds, blocked.task or "something that is no task", blocked.stack),
            )


class AsyncWorker:
    """Runs ``async def`` tasks on the running event loop, others in threads beside it.

    Takes what `Worker` takes; queues are names or `AsyncFairQueue` objects. Its leases are renewed on the same loop,
    so a task that blocks the loop for longer than a lease loses that lease, and all others. The loop belongs to the program:
    a task that lets `SystemExit` through, or stops the loop, ends the program (`Worker` and ``fairque_worker`` prevent this).
    """

    def __init__(
        self, queues: Sequence[str | AsyncFairQueue] | None = None, **arguments: Unpack[WorkerArguments]
    ) -> None:
        given = None if queues is None else each_once(queues)
        names = None if given is None else [each if isinstance(each, str) else each.name for each in given]
        self.options = WorkerOptions.from_arguments(names, arguments)
        self._given = given
        if self.options.max_memory_mb:
            raise ConfigurationError("max_memory_mb is for Worker: a coroutine can't give its process up")
        self.signal_thread = SignalThread(self.options, self._find_task)
        self._budget = SlotBudget(self.options.concurrency, max_tasks=self.options.max_tasks, burst=self.options.burst)
        self.contexts = [
            CoroutineContexts(close_connections=self.options.close_database_connections)
            for _ in range(self.options.concurrency)
        ]
        """Those that no task uses now."""
        self._fetchers: list[AsyncFetcher] = []
        self._fetch_tasks: list[ProtectedTask] = []
        self._is_stopping = False
        self._is_draining = False
        self._had_unknown = False
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self) -> None:
        """Work until `stop`, or until a limit or the end of a burst is reached. Once."""
        self._loop = asyncio.get_running_loop()
        warn_about_isolated_tasks()
        config = get_config()
        # A client of its own, which ends with it: the loop's other users keep theirs.
        client: Any = config.redis.model_copy(update={"decode_responses": False}).create_async_redis_client()
        queues = [
            AsyncFairQueue(client, each, config.queue_config(each)) if isinstance(each, str) else each
            for each in self._given or self.options.queues
        ]
        try:
            await self._work(queues)
        finally:
            await client.aclose()

    async def _work(self, queues: Sequence[AsyncFairQueue]) -> None:
        threads = ThreadPoolExecutor(self.options.concurrency, "fairque-slot")
        places = [place for queue in queues for place in shard_places_of(queue, self.options)]
        self._fetchers = [AsyncFetcher(self, index, place, threads) for index, place in enumerate(places)]
        self.signal_thread.send_worker_signal(signals.worker_started)
        helpers = [protected(each) for fetcher in self._fetchers for each in (fetcher.renew(), fetcher.sweep())]
        self._fetch_tasks = fetch_tasks = [protected(fetcher.fetch()) for fetcher in self._fetchers]
        monitor = MonitorThread(self._fetchers)
        monitor.start()
        if self._is_stopping:
            self.stop()
        try:
            await self._ended(fetch_tasks)
        finally:
            loops = [*fetch_tasks, *helpers, *(fetcher.wait_task for fetcher in self._fetchers if fetcher.wait_task)]
            await cancel_all(loops, LOOP_CANCEL_REPEAT_SECONDS)
            await cancel_all(
                (task for fetcher in self._fetchers for task in fetcher.running), TASK_CANCEL_REPEAT_SECONDS
            )
            threads.shutdown(wait=False)
            monitor.end()
            for contexts in self.contexts:
                contexts.end()
            for fetcher in self._fetchers:
                await fetcher.leave()
            self.signal_thread.send_worker_signal(signals.worker_stopped)
            await asyncio.to_thread(self.signal_thread.end, 5.0)

    def _find_task(self, queue: str, task_id: str) -> Task | None:
        """From the herald's thread, while the loop runs."""
        assert self._loop is not None  # noqa: S101 - news come from what runs on it
        place = next(fetcher.queue for fetcher in self._fetchers if fetcher.queue.name == queue)
        try:
            return asyncio.run_coroutine_threadsafe(place.whole.get_task(task_id), self._loop).result(FIND_TASK_SECONDS)
        except TaskNotFoundError:
            return None

    def stop(self) -> None:
        """Begin to stop: fetch nothing more, give back what has not begun, let run what runs. From any thread."""
        self._is_stopping = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop_fetchers)

    def execute_command(self, command: str) -> None:
        """Do as an operator wishes."""
        logger.info("worker %s was told: %s", self.options.worker_id, command)
        if command == STOP_COMMAND:
            self.stop()
            return
        self._is_draining = command == DRAIN_COMMAND
        for fetcher in self._fetchers:
            fetcher.planner.set_draining(is_draining=self._is_draining)
            fetcher.wakeup.set()

    def _stop_fetchers(self) -> None:
        for fetcher in self._fetchers:
            fetcher.planner.is_stopping = True
            fetcher.wakeup.set()

    async def _ended(self, fetch_tasks: Sequence[asyncio.Future[None]]) -> None:
        """Until all is settled; after a stop at most the time given for that."""
        deadline = None
        while True:
            done, _ = await asyncio.wait(fetch_tasks, timeout=0.1, return_when=asyncio.ALL_COMPLETED)
            for fetch_task in done:
                fetch_task.result()
            if len(done) == len(fetch_tasks):
                return
            if self._is_stopping:
                deadline = deadline or monotonic() + self.options.shutdown_timeout
                if monotonic() > deadline:
                    logger.warning(
                        "some tasks did not end within %g s; they are given back", self.options.shutdown_timeout
                    )
                    return

    def changed(self) -> None:
        """A desk has made a call."""
        if self._is_stopping:
            return
        if self._budget.has_reached_max_tasks or (self._budget.burst and self._budget.is_everything_empty):
            self.stop()
        else:
            for fetcher in self._fetchers:
                if len(self._fetchers) > 1 and (fetcher.planner.wants_tasks or self._budget.burst):
                    fetcher.wakeup.set()

    @property
    def budget(self) -> SlotBudget:
        """What it may still do before it ends."""
        return self._budget

    @property
    def is_canceled(self) -> bool:
        """Whether its own coroutines are canceled, as by `asyncio.run` at the end of the program, and all tasks with them."""
        return any(fetch_task.was_canceled for fetch_task in self._fetch_tasks)

    @property
    def has_free_slot(self) -> bool:
        """Whether it could run one more task now."""
        return sum(len(fetcher.running) for fetcher in self._fetchers) < self.options.concurrency

    def start_more(self) -> None:
        """Start what has been fetched, as far as there are slots."""
        for fetcher in self._fetchers:
            fetcher.start()

    def info(self) -> dict[str, str]:
        """What it says of itself in its heartbeats."""
        return worker_info(
            self.options,
            done=self._budget.finished,
            running=sum(len(fetcher.running) for fetcher in self._fetchers),
            status=worker_status(is_draining=self._is_draining, is_stopping=self._is_stopping),
            unknown_tasks=self._unknown_tasks(),
        )

    def _unknown_tasks(self) -> list[str] | None:
        """Names of tasks that came lately and that no function is registered for; None as long as there were none."""
        names = sorted({name for fetcher in self._fetchers for name in fetcher.unknown.names()})
        self._had_unknown = self._had_unknown or bool(names)
        return names if self._had_unknown else None
