"""Delivers the rows of an outbox to their queues, in the order of the row ids, and deletes the rows.

Any number of processes may relay at the same time, without a lock. For each user, a process begins with the oldest row
that it sees, and a row is deleted only after its tasks were delivered. So if a process does not see earlier rows, they
were already delivered, and the order of each user's tasks is kept. If two processes deliver the same row, the queue
accepts its tasks once.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from time import monotonic
from typing import TYPE_CHECKING

from django.db import DatabaseError, connections
from django.db.models import F, QuerySet
from django.utils import timezone

from django_fairque import signals as task_signals
from django_fairque.conf.current import get_queue
from django_fairque.engine.model.errors import AtLimitError, BacklogFullError, FairQueueError, RedisConnectionError
from django_fairque.engine.model.records import EventCount, PushResult, push_refused
from django_fairque.engine.pushing.push import REMOVED_ROW_RECORD_SECONDS
from django_fairque.hooks import around_push
from django_fairque.safely import get_logger

from . import has_outbox
from .clock import DatabaseClock
from .rows import decode, is_graph

if TYPE_CHECKING:
    from django_fairque.engine.model.task import Task
    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.models import OutboxEntry

MAX_ROWS_PER_RELAY = 500
"""Maximum number of rows that one pass reads and delivers."""
STALE_ROWS_SECONDS = REMOVED_ROW_RECORD_SECONDS / 2
"""Seconds after which rows that were read count as stale. Another process may have delivered such a row so long ago
that the server no longer remembers it."""
FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 5.0, 300.0
"""Seconds until a row that could not be delivered for a reason in the row itself is tried again. The pause doubles from the
first to the longest value."""

logger = get_logger("django_fairque.outbox")


@dataclass
class Relayed:
    """The result of one pass over the rows. ``error`` is the reason why the pass stopped early; ``more`` shows that
    there were more rows than the pass has read.
    """

    pushed: list[tuple[str, list[Task], list[PushResult]]] = field(default_factory=list)
    uncounted: dict[str, Mapping[str, EventCount]] = field(default_factory=dict)
    """Counts of model events that were not delivered, by queue."""
    refused: int = 0
    error: FairQueueError | None = None
    more: bool = False

    @property
    def tasks(self) -> int:
        return sum(len(tasks) for _, tasks, _ in self.pushed)


def relay(
    database: str,
    users: Collection[str] | None = None,
    *,
    minimum_age: float = 0.0,
    queue_of: Callable[[str], FairQueue] = get_queue,
) -> Relayed:
    """Relay rows like `relay_rows`, and send the signal `task_pushed` for each task that was delivered."""
    relayed = relay_rows(database, users, minimum_age=minimum_age, queue_of=queue_of)
    for queue, tasks, results in relayed.pushed:
        task_signals.send_task_pushed(queue, tasks, results)
    return relayed


def relay_rows(
    database: str,
    users: Collection[str] | None = None,
    counts: Mapping[str, Mapping[str, EventCount]] | None = None,
    *,
    committed: Collection[str] = (),
    minimum_age: float = 0.0,
    now: datetime | None = None,
    queue_of: Callable[[str], FairQueue] = get_queue,
) -> Relayed:
    """Relay the oldest rows of some users or of all users, at most `MAX_ROWS_PER_RELAY`. No signals are sent; see
    `relay`.

    Args:
        counts: counts of model events, by queue. These are delivered together with the tasks.
        committed: the task ids of rows whose transaction the caller has just committed: the delays of their tasks begin
            now. The delays of other rows began when the row was written, as no database records when a transaction was
            committed.
        minimum_age: rows that are younger than this many seconds are left to the processes that wrote them.
        queue_of: function that returns the queue with a name, with the caller's timeout.

    Errors of the server are returned and recorded in the rows. Errors of the database are raised.
    """
    at = now or timezone.now()
    read_at = monotonic()
    found = _due(database, at, minimum_age) if users is None else _entries(database).filter(user_id__in=users)
    rows = list(found.order_by("id")[:MAX_ROWS_PER_RELAY])
    done = Relayed(uncounted=dict(counts or {}), more=len(rows) == MAX_ROWS_PER_RELAY)
    if users is not None:
        rows = _filter_due_rows(rows, at)
    going = _Relay(database, at, done, queue_of, committed)
    for queue, group in itertools.groupby(rows, key=lambda row: row.queue):
        if done.error is None:
            if monotonic() - read_at > STALE_ROWS_SECONDS:
                done.more = True
                break
            going.deliver(queue, list(group))
    if done.error is None:
        going.deliver_counts()
    return done


def _due(database: str, now: datetime, minimum_age: float) -> QuerySet[OutboxEntry]:
    """Return the rows that may be relayed. If the oldest row of a user waits for a retry, all rows of the user wait.

    This needs a single SQL statement. Between two statements, another process could let a row wait for a retry, and a
    later row of the user would be relayed before it.
    """
    entries = _entries(database)
    waiting = entries.filter(retry_at__gt=now, is_stuck=False)
    due: QuerySet[OutboxEntry] = entries.exclude(retry_at__gt=now).exclude(user_id__in=waiting.values("user_id"))
    if minimum_age:
        due = due.filter(created_at__lte=now - timedelta(seconds=minimum_age))
    return due


def _filter_due_rows(rows: Iterable[OutboxEntry], now: datetime) -> list[OutboxEntry]:
    """Return the rows that may be relayed, like `_due`, from rows of some users that one query has already read. Used
    after each commit.
    """
    blocked: set[str] = set()
    due = []
    for row in rows:
        waits = row.retry_at is not None and row.retry_at > now
        if waits and not row.is_stuck:
            blocked.add(row.user_id)
        if not waits and row.user_id not in blocked:
            due.append(row)
    return due


def _entries(database: str) -> QuerySet[OutboxEntry]:
    from django_fairque.models import OutboxEntry

    entries: QuerySet[OutboxEntry] = OutboxEntry.objects.using(database)
    return entries


def outboxes() -> list[str]:
    """Return the aliases of the databases that have an outbox."""
    return [alias for alias in connections if has_outbox(alias)]


def is_migrated() -> bool:
    """Return whether an outbox table exists or may exist in any database. Before ``migrate`` has run, for example, the
    result is False.

    One database with the table is enough, because a project can have other databases that it never migrates.
    """
    from django_fairque.models import OutboxEntry

    try:
        return any(OutboxEntry._meta.db_table in connections[alias].introspection.table_names() for alias in outboxes())
    except DatabaseError:  # the database can't be reached now, so the table may exist
        return True


class _Relay:
    """One pass over the rows of a database."""

    def __init__(
        self,
        database: str,
        now: datetime,
        done: Relayed,
        queue_of: Callable[[str], FairQueue],
        committed: Collection[str],
    ) -> None:
        self._database = database
        self._clock = DatabaseClock(database)
        self._committed = committed
        self._now = now
        self._done = done
        self._queue_of = functools.cache(queue_of)
        self._waiting: set[str] = set()
        """Users with a row that waits for a retry. The users' later rows wait too, in all queues."""

    def deliver(self, queue: str, rows: Sequence[OutboxEntry]) -> None:
        """Deliver the rows of one queue. If a row can't be delivered for a reason in the row itself, it waits for a retry."""
        singles: list[tuple[OutboxEntry, list[Task]]] = []
        for row in rows:
            try:
                tasks = decode(row, None if row.task_id in self._committed else self._measure_age)
            except FairQueueError as error:
                self._step_aside(row, error)
                continue
            if is_graph(tasks):
                self._deliver(queue, singles)
                singles = []
                self._deliver(queue, [(row, tasks)])
            else:
                singles.append((row, tasks))
        self._deliver(queue, singles)

    def _measure_age(self, written: float) -> float:
        return max(0.0, self._clock.now() - written)

    def deliver_counts(self) -> None:
        """Deliver the counts of model events that were not delivered together with tasks."""
        for queue in list(self._done.uncounted):
            try:
                self._queue_of(queue).deliver([], self._done.uncounted[queue])
            except FairQueueError as error:
                self._done.error = error
                return
            del self._done.uncounted[queue]

    def _may_go(self, row: OutboxEntry) -> bool:
        return self._done.error is None and row.user_id not in self._waiting

    def _deliver(self, queue: str, entries: Sequence[tuple[OutboxEntry, list[Task]]]) -> None:
        """Deliver several rows with one task each, or one row with a graph of tasks."""
        entries = [entry for entry in entries if self._may_go(entry[0])]
        if not entries:
            return
        rows, tasks = [row for row, _ in entries], [task for _, some in entries for task in some]
        whole = is_graph(tasks)
        counts, run_id = (None, tasks[0].run_id) if whole else (self._done.uncounted.get(queue), "")
        try:
            with around_push(queue, tasks):
                results = self._queue_of(queue).deliver(tasks, counts, run_id=run_id, is_graph=whole, from_outbox=True)
        except RedisConnectionError as error:
            self._stop(rows, error)
        except AtLimitError as error:  # raised only for a graph; single tasks have this refusal in their results
            logger.info("a graph of the outbox of %r was left out: %s", self._database, error)
            self._remove(queue, rows, tasks, [PushResult(task.task_id, "at_limit") for task in tasks])
        except FairQueueError as error:
            if len(entries) == 1:
                self._step_aside(rows[0], error)
                return
            for entry in entries:  # the row with the error is among these rows
                self._deliver(queue, [entry])
        else:
            if whole:
                self._remove(queue, rows, tasks, results)
                return
            self._done.uncounted.pop(queue, None)
            self._record_results(queue, rows, tasks, results)

    def _record_results(
        self, queue: str, rows: list[OutboxEntry], tasks: list[Task], results: Sequence[PushResult]
    ) -> None:
        answered = list(zip(rows, tasks, results, strict=True))
        # Do not retry a task that a limit refused (``at_limit="skip"``): it would be refused again until another task
        # has done its work.
        taken = [answer for answer in answered if answer[2].is_known or answer[2].status == "at_limit"]
        if taken:
            self._remove(queue, *map(list, zip(*taken, strict=True)))
        for row, task, result in answered:
            if not (result.is_known or result.status == "at_limit") and self._may_go(row):
                full = BacklogFullError(f"the backlog of user {task.user_id!r} is full", refused=[])
                self._step_aside(row, push_refused(queue, [result]) if result.status == "id_conflict" else full)

    def _remove(self, queue: str, rows: Sequence[OutboxEntry], tasks: list[Task], results: list[PushResult]) -> None:
        """Delete the rows first, then the server's records of the delivered rows. If the process dies in between, too
        many records remain, but never too few.
        """
        self._rows(rows).delete()
        self._done.pushed.append((queue, tasks, results))
        try:
            self._queue_of(queue).forget_delivered([task.task_id for task in tasks])
        except FairQueueError as error:  # ignored, because an outage of the server ends by itself
            logger.debug("what was delivered to queue %s is remembered for longer: %s", queue, error)

    def _stop(self, rows: Sequence[OutboxEntry], error: FairQueueError) -> None:
        """Stop this pass because the server can't be reached. The rows are not marked for a retry."""
        self._done.error = error
        self._rows(rows).update(attempts=F("attempts") + 1, last_error=str(error))

    def _step_aside(self, row: OutboxEntry, error: FairQueueError) -> None:
        """Try this row again later. The user's other rows wait for this row, unless the row itself is faulty."""
        is_stuck = not isinstance(error, BacklogFullError)
        if not is_stuck:
            self._waiting.add(row.user_id)
        pause = min(LONGEST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2.0 ** min(row.attempts, 30))
        self._done.refused += 1
        self._rows([row]).update(
            attempts=F("attempts") + 1,
            last_error=str(error),
            retry_at=self._now + timedelta(seconds=pause),
            is_stuck=is_stuck,
        )
        if is_stuck:
            logger.error("task %s can't be relayed from the outbox of %r: %s", row, self._database, error)

    def _rows(self, rows: Sequence[OutboxEntry]) -> QuerySet[OutboxEntry]:
        rest: QuerySet[OutboxEntry] = _entries(self._database).filter(pk__in=[row.pk for row in rows])
        return rest
