"""Leases: a lease is a worker's right to run a task, as a pop returns it. Most of its values are decoded when they are
read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from django_fairque.engine.model import payload as json_payload
from django_fairque.engine.model.durations import seconds
from django_fairque.engine.model.errors import TaskValidationError, short
from django_fairque.engine.model.lanes import Lane, read_priority
from django_fairque.engine.model.signature import split_signature
from django_fairque.engine.model.task import LEASE_FIELDS, Task
from django_fairque.engine.model.trace_context import NO_TRACE, Trace, decode_trace

if TYPE_CHECKING:
    from django_fairque.engine.model.priority import Priority

__all__ = ["LEASE_FIELDS", "Lease", "LeaseKey"]


class LeaseKey(NamedTuple):
    """The identity of a lease: its ``task_id`` and its ``token``. The task id is not enough, because another task may run
    with the same id as soon as the first has ended.
    """

    task_id: str
    token: int


class Lease:
    """A worker's time-limited right to one task, returned by `FairQueue.pop`.

    ``token`` of a new lease is larger than all earlier tokens of the shard. Every call with a lease sends its token, and is
    refused if the token is not the task's current one. Pass the token to your database writes to fence them
    (``fence < token``). ``task_id`` is the id of the task, ``user_id`` its user, ``name`` the task's name (empty for a bare
    payload), ``worker`` the worker that has the lease, ``started_at`` and ``expires_at`` are Unix times of the server, and
    ``shard`` is the shard's number. Other attributes are decoded when they are read.
    """

    __slots__ = (
        *("_opened", "_payload", "_task", "_values", "expires_at", "name", "shard", "started_at"),
        *("task_id", "token", "user_id", "worker"),
    )

    def __init__(self, values: Sequence[bytes], worker: str, started_at: float, shard: int = 0) -> None:
        self._values = values
        self.task_id = values[0].decode()
        # Values that every task needs are decoded now. Other values are decoded later and kept, but without
        # `cached_property`: before Python 3.12 it takes a lock, for which the slots of a worker waited. A damaged
        # record does not raise an error here, so that it can be logged and sorted: `check` refuses it.
        self.user_id = values[5].decode(errors="backslashreplace")
        self.name = values[6].decode(errors="backslashreplace")
        self.token = int(values[1])
        self.expires_at = int(values[3]) / 1_000_000
        self.started_at = started_at
        self.worker = worker
        self.shard = shard

    def __repr__(self) -> str:
        return f"<Lease {self.task_id!r} token={self.token} worker={self.worker!r}>"

    @property
    def key(self) -> LeaseKey:
        """The identity of the lease among all leases of its queue."""
        return LeaseKey(self.task_id, self.token)

    @property
    def delivery(self) -> int:
        """The number of times that the task was handed out without an outcome, including this time."""
        return int(self._values[2])

    def _open(self) -> tuple[bytes, bytes]:
        if not hasattr(self, "_opened"):
            self._opened = split_signature(self._values[4])
        return self._opened

    @property
    def payload_size(self) -> int:
        """The number of bytes of the payload and its signature."""
        return len(self._values[4])

    @property
    def payload_bytes(self) -> bytes:
        """The payload as it came from the server, as JSON."""
        return self._open()[0]

    @property
    def signature(self) -> bytes:
        """The signature after the payload, with which workers check that the application pushed the task; may be empty."""
        return self._open()[1]

    @property
    def payload(self) -> Any:
        """The decoded payload. Raises `TaskSerializationError` if it is not JSON."""
        if not hasattr(self, "_payload"):
            # Workers log the error, so it must not quote the payload.
            self._payload = json_payload.loads(self.payload_bytes, quotes=False)
        return self._payload

    @property
    def priority(self) -> Priority:
        """The priority of the task."""
        return read_priority(self._values[7] or b"3")

    @property
    def lane(self) -> Lane:
        """The lane of the task."""
        form = self._values[7]
        return "urgent" if form == b"7" else "bulk" if form == b"0" else "normal"

    @property
    def run_id(self) -> str:
        """The run with which the task was pushed; empty without a run."""
        return self._values[16].decode(errors="backslashreplace")

    @property
    def trace(self) -> Trace:
        """The trace that the task belongs to."""
        return decode_trace(self._values[17]) if self._values[17] else NO_TRACE

    @property
    def is_suspect(self) -> bool:
        """Whether the task was running when its process died. Workers run such a task alone, so that another death has
        only one possible cause.
        """
        return self._values[18] == b"1"

    @property
    def is_quarantined(self) -> bool:
        """Whether, within the last ten minutes, a task of the same name and user exceeded its hard limit, or such tasks
        ended two processes in which they ran alone. Workers run such a task alone.
        """
        return self._values[18] == b"2"

    @property
    def deadline(self) -> float:
        """The Unix time before which the task should start by its SLA."""
        return seconds(self._values[15]) or 0.0

    @property
    def retry_count(self) -> int:
        """The number of the task's retries that are used up."""
        return int(self._values[10] or 0)

    @property
    def max_retries(self) -> int:
        """The total number of the task's retries."""
        return int(self._values[11] or 0)

    @property
    def timeout(self) -> float | None:
        """Seconds the task may run; None for the value of its function, its queue or the worker."""
        return seconds(self._values[12])

    @property
    def ready_at(self) -> float:
        """The Unix time since which the task could be served."""
        return seconds(self._values[9]) or 0.0

    def check(self) -> None:
        """Raise `ValueError` if the record is damaged. Workers call this before the task runs."""
        for at in (5, 6, 16):
            self._values[at].decode()
        for at in (9, 12, 15):
            if value := self._values[at]:
                seconds(value)
        for at in (10, 11):
            int(self._values[at] or 0)
        _ = self.trace

    @property
    def task(self) -> Task:
        """The task, with its decoded payload."""
        if not hasattr(self, "_task"):
            self._task = Task.from_lua_result(self._values)
        return self._task


_REPLY_VALUES = 15
_FIELD_INDEX = {name.encode(): index for index, name in enumerate(LEASE_FIELDS)}


def leases_of_reply(reply: Sequence[Any], first: int, worker: str, started_at: float, shard: int) -> Iterator[Lease]:
    """Yield the leases of a script's reply, which begin at the index ``first`` (pop.lua describes them)."""
    none, one = b"", b"1"
    for at in range(first + 1, len(reply), _REPLY_VALUES):
        task_id, token, payload, user, name, priority, created, ready = reply[at : at + 8]
        max_retries, timeout, deadline, expires, run, trace, rare = reply[at + 8 : at + _REPLY_VALUES]
        if isinstance(deadline, int):  # other values come from a damaged record
            deadline = b"%d" % deadline
        values = [task_id, token, one, reply[first], payload, user, name, priority, created, ready or created]
        values += none, max_retries, timeout, none, expires, deadline, run, trace, none
        if rare:
            pairs = json_payload.unpack(rare)
            for field, value in zip(pairs[::2], pairs[1::2], strict=True):
                values[_FIELD_INDEX[field]] = value
        yield Lease(values, worker, started_at, shard)


def check_lease(lease: Lease) -> Lease:
    """Return ``lease``; raise `TaskValidationError` if it is not a `Lease`."""
    if not isinstance(lease, Lease):
        raise TaskValidationError(
            f"expected a Lease, as pop() returns it, got {short(lease)}; pop() returns None when there is nothing to do"
        )
    return lease
