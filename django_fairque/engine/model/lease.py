"""A worker's right to a task, as a pop returns it; nothing is decoded before it is read."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from django_fairque.engine.model import payload as json_payload
from django_fairque.engine.model.durations import seconds
from django_fairque.engine.model.errors import TaskValidationError, short
from django_fairque.engine.model.signature import split_signature
from django_fairque.engine.model.task import LEASE_FIELDS, Task
from django_fairque.engine.model.trace_context import NO_TRACE, Trace, restored

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["LEASE_FIELDS", "Lease", "LeaseKey"]


class LeaseKey(NamedTuple):
    """Which lease it is: not the id alone, under which another task may run as soon as the first has ended."""

    task_id: str
    token: int


class Lease:
    """A worker's time-limited right to one task.

    ``token`` only ever grows within a shard; everything done with the lease carries it and is refused when it
    is no longer the task's current one. Hand it to your own database writes to fence them (``fence < token``).
    """

    __slots__ = ("__dict__", "_values", "expires_at", "shard", "started_at", "task_id", "token", "worker")

    def __init__(self, values: Sequence[bytes], worker: str, started_at: float, shard: int = 0) -> None:
        self._values = values
        self.task_id = values[0].decode()
        self.token = int(values[1])
        self.expires_at = int(values[3]) / 1_000_000
        self.started_at = started_at
        self.worker = worker
        self.shard = shard

    def __repr__(self) -> str:
        return f"<Lease {self.task_id!r} token={self.token} worker={self.worker!r}>"

    @property
    def key(self) -> LeaseKey:
        """What distinguishes it from all other leases of its queue."""
        return LeaseKey(self.task_id, self.token)

    @property
    def delivery(self) -> int:
        """How many times it was handed out without an outcome, this time included."""
        return int(self._values[2])

    @cached_property
    def _opened(self) -> tuple[bytes, bytes]:
        return split_signature(self._values[4])

    @property
    def payload_bytes(self) -> bytes:
        """The payload as it came from the wire."""
        return self._opened[0]

    @property
    def signature(self) -> bytes:
        """What the pusher put behind the payload so that workers know it (`sealing`), or nothing."""
        return self._opened[1]

    @cached_property
    def payload(self) -> Any:
        """The decoded payload; `TaskSerializationError` if it is not the JSON it should be."""
        return json_payload.loads(self.payload_bytes, quotes=False)  # workers log it

    @cached_property
    def user_id(self) -> str:
        """For whom it is."""
        return _text(self._values[5])

    @cached_property
    def name(self) -> str:
        """The name of its task, empty for a bare payload."""
        return _text(self._values[6])

    @property
    def run_id(self) -> str:
        """The run that it was pushed with, or empty."""
        return _text(self._values[16])

    @cached_property
    def trace(self) -> Trace:
        """The trace that it belongs to."""
        return restored(self._values[17]) if self._values[17] else NO_TRACE

    @property
    def is_suspect(self) -> bool:
        """Whether it was running when its process died: workers run it alone, so that another death has one cause."""
        return self._values[18] == b"1"

    @property
    def is_quarantined(self) -> bool:
        """Whether a task of its name and user exceeded its hard limit lately: workers run it alone."""
        return self._values[18] == b"2"

    @property
    def deadline(self) -> float:
        """Until when it should start (SLA)."""
        return seconds(self._values[15]) or 0.0

    @property
    def retry_count(self) -> int:
        """How many of its retries are used up."""
        return int(self._values[10] or 0)

    @property
    def max_retries(self) -> int:
        """How many retries it has in all."""
        return int(self._values[11] or 0)

    @property
    def timeout(self) -> float | None:
        """Seconds the task may run, None for what its function, its queue or the worker says."""
        return seconds(self._values[12])

    @property
    def ready_at(self) -> float:
        """Since when it could have been served."""
        return seconds(self._values[9]) or 0.0

    def check(self) -> None:
        """Raise `ValueError` if the record was damaged: before the task runs, not somewhere in the worker."""
        for at in (5, 6, 16):
            self._values[at].decode()
        _ = self.timeout, self.retry_count, self.max_retries, self.ready_at, self.deadline, self.trace

    @cached_property
    def task(self) -> Task:
        return Task.from_lua_result(self._values)


def check_lease(lease: Lease) -> Lease:
    """Raise `TaskValidationError` for what is none."""
    if not isinstance(lease, Lease):
        raise TaskValidationError(
            f"expected a Lease, as pop() returns it, got {short(lease)}; pop() returns None when there is nothing to do"
        )
    return lease


def _text(value: bytes) -> str:
    # A damaged record can still be logged and sorted: `check` refuses it.
    return value.decode(errors="backslashreplace")
