"""``queue.logs``: the log lines of tasks that were declared with ``capture_logs``.

Each task has a hash with one value for each of its last attempts, under the token of the attempt's lease. While the
task runs, its worker replaces the value of the current attempt. The hash is forgotten with the task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django_fairque.engine.inspection.task_lookup import attempt
from django_fairque.engine.model import payload as json_payload
from django_fairque.engine.model.durations import LATEST_TIME
from django_fairque.engine.model.errors import StaleLeaseError, TaskSerializationError
from django_fairque.engine.model.ids import check_id
from django_fairque.engine.scripting.operations import Driver, Operation, read_sound

if TYPE_CHECKING:
    from django_fairque.engine.model.lease import Lease
    from django_fairque.engine.model.records import Attempt
    from django_fairque.engine.sharding.shards import AllShardsReader, Shards

MAX_RECORDED_LOG_BYTES = 65_536
"""The largest log of one attempt, in bytes of JSON. Workers keep less (`MAX_CAPTURED_BYTES`)."""


@dataclass(frozen=True)
class LogLine:
    """One log record: ``at`` is its time (Unix time of the worker's machine), ``level`` and ``logger`` are names, and
    ``text`` is the message with its traceback.
    """

    at: float
    level: str
    logger: str
    text: str


@dataclass(frozen=True)
class AttemptLog:
    """The last ``lines`` that one attempt has logged, the oldest first; ``omitted`` lines before them were not kept.

    ``worker`` had the task, and ``attempt`` is its number: 1 for the first, one more after each failure.
    """

    worker: str
    attempt: int
    omitted: int
    lines: tuple[LogLine, ...]


def record_logs(
    shards: Shards, lease: Lease, lines: Sequence[LogLine], omitted: int, now: float | None
) -> Operation[None]:
    rows = [[round(line.at, 3), line.level, line.logger, line.text] for line in lines]
    entry = [lease.worker, lease.retry_count + 1, omitted, rows]
    body = json_payload.dumps(entry, limit=MAX_RECORDED_LOG_BYTES, what="the log of an attempt")
    recorded = yield shards.of_lease(lease).call("progress", [lease.task_id, lease.token, "", body], now)
    if not recorded:
        raise StaleLeaseError(f"the lease of task {lease.task_id!r} is not its current one; its log was not kept")


def read_logs(shards: Shards, task_id: str) -> Operation[list[AttemptLog]]:
    return (yield from read_history_and_logs(shards, task_id))[1]


def read_history_and_logs(shards: Shards, task_id: str) -> Operation[tuple[list[Attempt], list[AttemptLog]]]:
    keys = (yield from shards.of_task(task_id)).keys
    lines, found = yield from read_sound([("LRANGE", keys.history(task_id), 0, -1), ("HGETALL", keys.logs(task_id))])
    bodies = (body for _, body in sorted(found.items(), key=_token))
    logs = [log for log in map(_attempt_log, bodies) if log is not None]
    return [attempt(line) for line in lines], logs


def _token(entry: tuple[bytes, bytes]) -> int:
    return int(entry[0]) if entry[0].isdigit() else 0


def _attempt_log(body: bytes) -> AttemptLog | None:
    """Return the log in an entry of the hash; None if the entry is damaged."""
    try:
        worker, attempt, omitted, rows = json_payload.loads(body, what="the log of an attempt")
        return AttemptLog(str(worker), int(attempt), int(omitted), tuple(_line(*row) for row in rows))
    except (TaskSerializationError, ValueError, TypeError):
        return None


def _line(at: Any, level: Any, name: Any, text: Any) -> LogLine:
    moment = float(at)
    if not 0 <= moment <= LATEST_TIME:
        raise ValueError  # the record is damaged
    return LogLine(moment, str(level), str(name), str(text))


class TaskLogs:
    """The log lines of tasks that were declared with ``capture_logs``, returned by ``queue.logs``.

    ``now`` is that of the queue.
    """

    def __init__(self, shards: Shards, run: Driver, read_all_shards: AllShardsReader) -> None:
        self._shards, self._run, self._read_all_shards = shards, run, read_all_shards

    def of_task(self, task_id: str) -> list[AttemptLog]:
        """Return the log lines of the last attempts of task ``task_id``, at most five, the oldest first.

        An attempt that has logged nothing is left out. Returns an empty list if nothing was recorded or the task is
        unknown. The texts are as they were logged, with all secrets.
        """
        if self._shards.shard_in_id(check_id(task_id, "task_id")) is None:
            return self._read_all_shards(lambda shards: read_logs(shards, task_id))
        return self._run(read_logs(self._shards, task_id))

    def with_history(self, task_id: str) -> tuple[list[Attempt], list[AttemptLog]]:
        """Return the results of `FairQueue.history` and `of_task` for task ``task_id``, in one round trip."""
        if self._shards.shard_in_id(check_id(task_id, "task_id")) is None:
            return self._read_all_shards(lambda shards: read_history_and_logs(shards, task_id))
        return self._run(read_history_and_logs(self._shards, task_id))

    def record(self, lease: Lease, lines: Sequence[LogLine], omitted: int = 0, *, now: float | None = None) -> None:
        """Record the log lines of an attempt, in place of lines that were recorded for it before. Workers call this.

        ``lease`` is that of the task, ``lines`` are the last lines, of at most 65,536 bytes as JSON, and ``omitted``
        is the number of lines before them; 0 by default. Raises `StaleLeaseError` if the lease is not the task's
        current one, and `TaskSerializationError` if a text is not Unicode or there are too many lines.
        """
        self._run(record_logs(self._shards, lease, lines, omitted, now))
