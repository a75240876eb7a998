"""A thread that renews the leases of workers, gives back the leases of dead workers, and sweeps the queues.

The thread also fires schedules, and fetches alerts. Other threads announce the alerts, so that no code of the project
runs in this thread. One thread serves any number of workers (a supervisor's children, or the only worker of a process
without a supervisor). Leases are given back first, then renewed; then queues are swept. Each job is one short call, so
no job waits for long. A shard that can't be reached is tried again after a pause, while the work for all other shards
continues.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from time import monotonic
from typing import TYPE_CHECKING

from django_fairque.conf.current import get_queue, signing_mode
from django_fairque.engine.acts.moves import Mover
from django_fairque.engine.model.durations import JITTER
from django_fairque.engine.model.errors import FairQueueError
from django_fairque.engine.statistics.health import MAX_ALERTS, Alert
from django_fairque.tasks.signing import is_genuine
from django_fairque.worker.common.log import logger
from django_fairque.worker.leases.heartbeat import OperatorCommands, ServerEpochs
from django_fairque.worker.reporting.signal_thread import TaskEnding, endings_of_outcomes

if TYPE_CHECKING:
    from django_fairque.engine.model.lease import LeaseKey
    from django_fairque.engine.model.outcome import Outcome
    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.worker.common.options import WorkerOptions
    from django_fairque.worker.common.status_board import OccupiedSlot
    from django_fairque.worker.leases.outage import Outages
    from django_fairque.worker.reporting.signal_thread import Announcement

RENEWAL_RETRY_SECONDS = 2.0
"""Seconds for which a failed call is repeated before the server counts as unreachable. Less than a third of any
sensible lease."""
RENEWAL_OVERDUE_SECONDS = 1.0
"""Seconds by which a renewal may be late. A renewal that is later than this comes before giving back leases, which may
fail again and again."""
WORKER_RECORD_TTL_SECONDS = 60.0
"""Seconds for which the server keeps the record of a worker after its last heartbeat."""

ALERTS_PER_FETCH = 100
"""Maximum number of alerts that one call fetches."""
INCIDENT_UPDATE_SECONDS = 10.0
"""Seconds between two checks of a worker for incidents that are over."""
RELEASE_CHECK_SECONDS = 60.0
"""Seconds between two comparisons of releases while no incident is open."""
SCHEDULES_PER_SWEEP = 100
"""Maximum number of schedules that are fired between two sweeps."""


@dataclass
class RenewedWorker:
    """A worker whose leases this thread renews."""

    worker_id: str
    info: Callable[[], Mapping[str, str]]
    on_revoked: Callable[[int, Sequence[LeaseKey]], object]
    """Called with the shard index and the leases that were canceled or lost."""
    running: Callable[[], Sequence[OccupiedSlot]] = tuple
    """Function that returns the worker's occupied slots."""
    on_server_changed: Callable[[int], object] = lambda _: None
    """Called with the shard index when another server answers than before: the leases that the server has recorded for
    this worker must be compared with the leases that the worker holds."""
    due: dict[str, float] = field(default_factory=dict)
    """Time of the next renewal, by the label of a queue or shard."""
    confirmed: dict[str, float] = field(default_factory=dict)
    """Time (`time.monotonic()`) at which the last successful renewal was sent, by the label of a queue or shard."""
    operator_commands: OperatorCommands = field(default_factory=OperatorCommands)


@dataclass
class LeaseReturn:
    """Leases of a dead worker to give back in one queue."""

    queue: str
    worker_id: str
    reason: str
    crashed: list[int] = field(default_factory=list)
    started: list[int] = field(default_factory=list)
    """Tokens of the tasks that were running, if the worker was ended for another reason than a crash."""
    outcomes: list[Outcome] = field(default_factory=list)
    """Outcomes of tasks that neither crashed nor were running when the worker ended. These outcomes are sent first."""
    moved: list[tuple[LeaseKey, str]] = field(default_factory=list)
    """Leases that the worker had passed on to separate processes, each with the worker id of the process that runs the
    task. These leases are moved to that process before the other leases are given back, because the process may not
    have taken them over yet."""
    is_gone: bool = True
    """Whether the worker is dead. If not, only the outcomes are sent."""
    on_done: Callable[[], object] = lambda: None
    """Called by the thread that renews leases, when the leases have been given back."""


@dataclass
class Reconciliation:
    """The leases of a living worker on one shard that must be given back: all leases except those of tasks that have
    begun.
    """

    queue: str
    worker_id: str
    reason: str
    started: Collection[int]
    """Tokens of the leases that have begun."""
    on_done: Callable[[int], object]
    """Called with the number of leases that were given back."""


class LeaseRenewal(threading.Thread):
    """The thread that renews leases; see the module's docstring. ``can_announce`` returns whether alerts that are
    fetched now would be announced.
    """

    def __init__(
        self,
        queues: Sequence[FairQueue],
        options: WorkerOptions,
        outages: Outages,
        on_announcements: Callable[[Sequence[Announcement]], object],
        on_command: Callable[[str], object],
        can_announce: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__(name="fairque-lease-renewal", daemon=True)
        self._queues = {
            shard.display_name: shard.with_retry_timeout(RENEWAL_RETRY_SECONDS)
            for queue in queues
            for shard in queue.shards
        }
        self._without_retries = {label: shard.with_retry_timeout(0.0) for label, shard in self._queues.items()}
        self._lease_seconds = options.lease_seconds
        self._renewal_interval = options.renewal_interval
        self._outages = outages
        self._on_announcements = on_announcements
        self._on_command = on_command
        self._can_announce = can_announce
        self._changed = threading.Condition()
        self._workers: dict[str, RenewedWorker] = {}
        self._returns: deque[LeaseReturn | Reconciliation] = deque()
        self._sweep_due = dict.fromkeys(self._queues, 0.0)
        self._first_shards = {queue.shards[0].display_name for queue in queues}
        self._unrecorded = {queue.name: deque[Alert](maxlen=MAX_ALERTS) for queue in queues}
        self._updated: dict[str, float] = {}
        self._server_epochs = ServerEpochs()
        self._not_before = dict.fromkeys(self._queues, 0.0)
        self._ended = False
        self._busy = False
        self.last_success_at = monotonic()
        """Time when this thread last completed a job without an error."""

    # --- called by other threads ---

    def max_silence(self, answer: float) -> float:
        """Return the seconds for which this thread may complete no job and still be healthy. One answer takes at most
        ``answer`` seconds; a shard's node may hang, while other shards answer.
        """
        has_several = any(shard.config.shards > 1 for shard in self._queues.values())
        return RENEWAL_RETRY_SECONDS + answer if has_several else 0.0

    def add(self, member: RenewedWorker) -> None:
        member.confirmed = dict.fromkeys(self._queues, monotonic())
        member.due = dict.fromkeys(self._queues, 0.0)
        with self._changed:
            self._workers[member.worker_id] = member
            self._changed.notify()

    def remove(self, worker_id: str) -> None:
        with self._changed:
            self._workers.pop(worker_id, None)

    def renew_now(self, worker_id: str) -> None:
        """Send the worker's heartbeat as soon as possible, because its report has changed."""
        with self._changed:
            if member := self._workers.get(worker_id):
                member.due = dict.fromkeys(self._queues, 0.0)
                self._changed.notify()

    def give_back(self, returns: Sequence[LeaseReturn | Reconciliation]) -> None:
        with self._changed:
            self._returns.extend(returns)
            self._changed.notify()

    @property
    def has_returns(self) -> bool:
        """Whether leases are still to be given back to servers that answer."""
        now = monotonic()
        return any(self._not_before[job.queue] <= now for job in self._returns.copy())

    def finish(self, seconds: float) -> bool:
        """Wait up to ``seconds`` until all leases are given back, then end the thread. Return whether all were given
        back.
        """
        deadline = monotonic() + seconds
        with self._changed:
            while (self._returns or self._busy) and monotonic() < deadline and self.is_alive():
                self._changed.wait(0.05)
            self._ended = True
            self._changed.notify()
            return not self._returns

    # --- called by this thread ---

    def run(self) -> None:
        while True:
            job = self._next_job()
            if job is None:
                return
            label, task = job
            began = monotonic()
            try:
                task()
            except FairQueueError as error:
                pause = self._outages.for_shard(label).record_failure(error)
                self._pause_node(label, max(pause, min(monotonic() - began, self._renewal_interval)))
            except Exception:  # noqa: BLE001 - a fault of ours must not end the thread that keeps all leases alive
                logger.exception("renewing leases failed; retrying")
                self._pause_node(label, 1.0)
            else:
                self._outages.for_shard(label).record_success()
                self.last_success_at = monotonic()

    def _pause_node(self, label: str, seconds: float) -> None:
        """Pause this shard and all other shards whose node can't be reached. Each attempt may last until a time-out, so
        at least as much time is left for reachable nodes.
        """
        until = monotonic() + seconds
        for queue_label, shard in self._queues.items():
            if queue_label == label or shard.is_away:
                self._not_before[queue_label] = max(until, self._not_before[queue_label])

    def _shard(self, label: str) -> FairQueue:
        """Return the queue or shard. If its node is known to be unreachable, calls are not repeated."""
        shard = self._queues[label]
        return self._without_retries[label] if shard.is_away else shard

    def _next_job(self) -> tuple[str, Callable[[], None]] | None:
        """Wait for the next job. Return it with the label of its shard, or None at the end."""
        with self._changed:
            self._busy = False
            self._changed.notify_all()
            while not self._ended:
                now = monotonic()
                job, due = self._choose_job(now)
                if due <= now:
                    self._busy = True
                    return job
                self._changed.wait(min(due - now, 5.0))
            return None

    def _choose_job(self, now: float) -> tuple[tuple[str, Callable[[], None]], float]:
        away = {label for label, shard in self._queues.items() if shard.is_away}
        # an attempt to reach unavailable nodes may last until a time-out, so renew early
        early = self._renewal_interval / 2 if away else 0.0
        renewals = [
            (max(due - (0.0 if label in away else early), self._not_before[label]), label, member)
            for member in self._workers.values()
            for label, due in member.due.items()
        ]
        due, label, member = min(renewals, key=itemgetter(0), default=(math.inf, "", None))
        back = next((job for job in self._returns if self._not_before[job.queue] <= now), None)
        if back is not None and due > now - RENEWAL_OVERDUE_SECONDS:
            if isinstance(back, Reconciliation):
                return (back.queue, partial(self._reconcile, back)), now
            return (back.queue, partial(self._give_back, back)), now
        sweeps = {name: max(at, self._not_before[name]) for name, at in self._sweep_due.items()}
        queue = min(sweeps, key=sweeps.__getitem__)
        if member is not None and due <= max(now, sweeps[queue]):
            return (label, partial(self._renew, member, label)), due
        return (queue, partial(self._sweep, queue)), sweeps[queue]

    def _give_back(self, job: LeaseReturn) -> None:
        queue = self._shard(job.queue)
        while job.outcomes:
            some = job.outcomes[:500]
            settled = queue.settle(some, worker=job.worker_id)
            if ended := list(endings_of_outcomes(queue.name, some, settled.statuses)):
                self._on_announcements(ended)
            del job.outcomes[:500]
        count = 0
        while job.moved:
            queue.take_over(*job.moved[-1], lease=self._lease_seconds)
            job.moved.pop()
        if job.is_gone:
            count = queue.release_worker(
                job.worker_id, job.crashed, started=job.started, reason=job.reason, forget=True
            )
        self._returns.remove(job)
        job.on_done()
        if count:
            logger.info("queue %s: %d tasks of worker %s are ready again", job.queue, count, job.worker_id)

    def _reconcile(self, job: Reconciliation) -> None:
        count = self._shard(job.queue).reconcile_worker(job.worker_id, job.started, reason=job.reason)
        self._returns.remove(job)
        job.on_done(count)

    def _renew(self, member: RenewedWorker, name: str) -> None:
        sent, shard_index = monotonic(), list(self._queues).index(name)
        heartbeat = self._shard(name).heartbeat(
            member.worker_id,
            member.info(),
            lease=self._lease_seconds,
            ttl=WORKER_RECORD_TTL_SECONDS,
            requires_signatures=signing_mode() == "on",
        )
        member.confirmed[name] = sent
        member.due[name] = monotonic() + self._renewal_interval
        if heartbeat.revoked:
            member.on_revoked(shard_index, heartbeat.revoked)
        if command := member.operator_commands.new_command(name, heartbeat.command):
            self._on_command(command)
        if self._server_epochs.has_changed_server(name, heartbeat):
            logger.warning("queue %s: another server answers, or the same one after a restart", name)
            for worker in list(self._workers.values()):
                worker.on_server_changed(shard_index)
        if loss := self._server_epochs.find_loss(name, heartbeat):
            self._report_loss(loss)

    def _report_loss(self, loss: Alert) -> None:
        """Report the loss of data. If a queue was emptied, stop its running tasks: the same tasks may be pushed again,
        and the server no longer knows that they are running.
        """
        self._on_announcements([loss])
        self._unrecorded[self._queues[loss.queue].name].append(loss)
        if loss.kind != "emptied":
            return
        shard_index = list(self._queues).index(loss.queue)
        for member in list(self._workers.values()):
            dropped = [key for slot in member.running() if slot.shard_index == shard_index for key in slot.keys]
            if dropped:
                logger.critical("queue %s: %d running tasks are given up", loss.queue, len(dropped))
                member.on_revoked(shard_index, dropped)

    def _record_incidents(self, queue: FairQueue, *, has_incidents: bool, is_first_shard: bool) -> None:
        """Record alerts. Every few seconds look for incidents that are over, and every minute compare releases. The first shard
        of the queue keeps incidents: alerts wait while it can't be reached."""
        alerts, incidents = self._unrecorded[queue.name], queue.parent_queue.with_retry_timeout(0.0).incidents
        try:
            if alerts:
                self._on_announcements(incidents.record(alerts))
                alerts.clear()
            pause = INCIDENT_UPDATE_SECONDS if has_incidents else RELEASE_CHECK_SECONDS
            is_needed = has_incidents or queue.config.release
            if is_first_shard and is_needed and monotonic() >= self._updated.get(queue.name, -pause) + pause:
                self._updated[queue.name] = monotonic()
                self._on_announcements(incidents.update())
        except FairQueueError as error:
            logger.debug("queue %s: incidents could not be recorded: %s", queue.name, error)

    def _advance_acts(self, queue: FairQueue) -> None:
        """Take the next step of each act on many tasks."""
        try:
            canceled = queue.parent_queue.with_retry_timeout(0.0).acts.advance(Mover(get_queue, is_genuine))
        except FairQueueError as error:  # after an error, the next sweep of any worker takes the step
            logger.warning("queue %s: acts on many tasks could not go on: %s", queue.name, error)
        else:
            self._on_announcements([TaskEnding(queue.name, task_id, "canceled", "") for task_id in canceled])

    def _sweep(self, name: str) -> None:
        queue, began = self._shard(name), monotonic()
        sweep = queue.sweep()
        alerts = (
            sweep.alerts if self._can_announce() else 0
        )  # do not fetch alerts that can't be announced: they stay for another worker, or for the next sweep
        if alerts:
            taken = queue.take_alerts(ALERTS_PER_FETCH)
            self._unrecorded[queue.name].extend(taken)
            self._on_announcements(taken)
        if self._can_announce():
            is_first = name in self._first_shards
            self._record_incidents(queue, has_incidents=bool(sweep.incidents), is_first_shard=is_first)
        if sweep.acts:
            self._advance_acts(queue)
        has_more, next_due = sweep.more or alerts > ALERTS_PER_FETCH, sweep.schedule_at
        if next_due is not None and next_due <= sweep.now:
            fired = queue.schedules.fire_due(SCHEDULES_PER_SWEEP)
            for firing in fired:
                if firing.error:
                    logger.warning(
                        "queue %s: schedule %s did not push its task: %s", queue.name, firing.name, firing.error
                    )
            has_more = has_more or sum(not firing.is_refused for firing in fired) >= SCHEDULES_PER_SWEEP
            next_due = queue.schedules.next_due(sweep.now)
        if sweep.messages:
            queue.parent_queue.carry_messages()
        now = monotonic()
        # Sweep again at once if there is more to do, and never later than the time of the next schedule. The time is
        # random, so that workers do not sweep all at once.
        pause = 0.0 if has_more else queue.config.sweep_interval * JITTER.uniform(0.5, 1.5)
        if next_due is not None and next_due > sweep.now:
            pause = min(pause, max(0.0, next_due - sweep.now - (now - began)))
        self._sweep_due[name] = now + pause
