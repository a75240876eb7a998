"""Shared memory in which a child process writes its current work, for its supervisor.

The supervisor must know the current work even if the child is dead, or can't answer because a task holds the
interpreter lock. So the child sends no messages about its work: the supervisor reads the shared memory. The memory
contains, for each slot, the leases that run, their start time and their time limit. There are also counts that grow
while the process and the fetch loop of each shard make progress, and there is the number of outcomes that are not
reported. Times are of `time.monotonic()`, which is the same clock in all processes of a machine. But a task may have
patched the function in the child. So the supervisor notes with its own clock when a count last changed (`board_watch`).

A slot's version is odd while a task runs. The child changes the version after it has written the record of a starting
task, and before it clears the record of a task that has ended. So a reader that finds the same odd version before and
after reading has read a consistent record.

The supervisor gives back leases of a child that does not respond (`child_process`). The child may respond again at any
moment, and must then not start these leases. For this purpose each shard has a fence number. The supervisor raises the
number, waits until all earlier writes of the child are visible, reads the tokens of the tasks that have started, and
gives back all other leases. Before a task starts, the child writes the task's token, and then compares the fence number
with the number at the time when the lease was received. If they differ, the task does not start.
"""

from __future__ import annotations

import marshal
import math
import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from time import monotonic
from typing import TYPE_CHECKING, Any

from django_fairque.engine.model.lease import LEASE_FIELDS, Lease, LeaseKey
from django_fairque.engine.model.outcome import Outcome

if TYPE_CHECKING:
    from multiprocessing.context import SpawnContext


SLOT_BYTES = 32_768
"""Bytes for a slot's record: room for a batch of 900 tasks with generated ids. If the child dies, the supervisor does
not know about further tasks of the batch."""
STARTED_TOKENS_PER_SLOT = 4096
"""Number of tokens that are kept for each slot: the tokens of the tasks that started last. A power of two. Must exceed
the number of tasks that one slot can end before their outcomes are reported, which `MAX_FETCH_LEASES` bounds."""
OUTCOME_LOG_HALF_BYTES = 32_768
"""Bytes of each of the two halves of a slot's `OutcomeLog`: room for 400 outcomes without a result, or for one outcome
with a result of 32 KB. A task whose outcome is larger runs again if the process is killed."""
MAX_REPORTED_OUTCOMES = 1000
"""Maximum number of outcomes of a shard that the supervisor reports for a dead process: the latest ones. Two settle
calls report fewer outcomes than this."""
ACTIVITY_BYTES = 8_192
"""Room for a report of a process about its slots, which has 8,000 bytes at most (`MAX_ACTIVITY_BYTES`)."""
SHARD_INDEX_BITS = 16
"""Number of low bits of a ring entry that hold the shard index. The token is in the higher bits."""
_ONE = struct.Struct("<ddHHqHH")
_RECORD = struct.Struct("<ddHH")
_LIMIT = struct.Struct("<dd")
"""The start time of a task, and the seconds for which the task may run."""
_TIMEOUT = struct.Struct("<d")
_STARTED = struct.Struct("<d")
_ENTRY = struct.Struct("<qHH")
_LENGTH = struct.Struct("<I")


def partial_lease(token: int, task_id: str, worker_id: str, retry_count: int = 0) -> Lease:
    """Make a lease that has only these fields, which are enough to report an outcome."""
    known = {"id": task_id.encode(), "token": b"%d" % token, "lease": b"0", "retries": b"%d" % retry_count}
    return Lease([known.get(field, b"") for field in LEASE_FIELDS], worker_id, 0.0)


@dataclass(frozen=True)
class OccupiedSlot:
    """The tasks that run in one slot. ``tasks`` are ``(token, retry count, id)``; several entries for a batch."""

    shard_index: int
    started: float
    timeout: float
    tasks: tuple[tuple[int, int, str], ...]

    @property
    def tokens(self) -> list[int]:
        return [token for token, _, _ in self.tasks]

    @property
    def keys(self) -> list[LeaseKey]:
        return [LeaseKey(name, token) for token, _, name in self.tasks]


class Fence:
    """The fence of one shard, as the child process reads it: two numbers, which are both 0 in a worker without a
    supervisor.
    """

    __slots__ = ("_lowered", "_raised", "_shard_index")

    def __init__(self, raised: Sequence[int] = (0,), lowered: Sequence[int] = (0,), shard_index: int = 0) -> None:
        self._raised, self._lowered, self._shard_index = raised, lowered, shard_index

    @property
    def number(self) -> int:
        """Return the fence's number, which grows each time the supervisor raises the fence. A lease that was received
        under a lower number does not start.
        """
        return self._raised[self._shard_index]

    @property
    def is_lowered(self) -> bool:
        """Return whether the leases that were received before the fence was raised have been given back, so that new
        leases may be fetched.
        """
        return self._lowered[self._shard_index] == self._raised[self._shard_index]


class OutcomeLog:
    """Outcomes of the tasks that have ended in a slot. The supervisor reports these outcomes if the process is killed.

    A process collects outcomes for up to 10 ms, or as long as a call to the server takes, before it reports them.
    Without this log, tasks whose outcomes are still collected would run again after a kill. If the process had already
    reported an outcome, the server refuses the second report, because the lease has ended.

    The log has two halves. When one half is full, the slot clears the other half and fills it, so the log always keeps
    at least one half of the latest outcomes. The length of a half is written after its contents, so the contents are
    complete even if the process is killed while it writes.
    """

    __slots__ = ("_at", "_current", "_half", "_halves", "_lengths")

    BYTES = 2 * (8 + OUTCOME_LOG_HALF_BYTES)

    def __init__(self, memory: memoryview) -> None:
        self._lengths = memory[:16].cast("q")
        self._halves = memory[16 : 16 + OUTCOME_LOG_HALF_BYTES], memory[16 + OUTCOME_LOG_HALF_BYTES :]
        self._current = self._at = 0
        self._half = self._halves[0]

    def add(self, shard_index: int, outcome: Outcome) -> None:
        """Add an outcome. The slot calls this for each task; it takes 1.2 µs."""
        lease = outcome.lease
        retries = lease.retry_count if outcome.uses_queue_backoff else 0
        entry = marshal.dumps(
            (
                *(shard_index, monotonic(), lease.task_id, lease.token, retries, outcome.kind, outcome.body),
                *(outcome.trace, outcome.took, outcome.delay, outcome.uses_queue_backoff, outcome.limits),
            ),
            2,  # this version of the format takes half the time of later versions
        )
        at = self._at
        end = at + 4 + len(entry)
        if end > OUTCOME_LOG_HALF_BYTES:
            if end - at > OUTCOME_LOG_HALF_BYTES:
                return
            self._current = 1 - self._current
            self._half = self._halves[self._current]
            self._lengths[self._current] = 0
            at, end = 0, end - at
        self._half[at:end] = _LENGTH.pack(len(entry)) + entry
        self._lengths[self._current] = self._at = end

    def read(self, shard_index: int, worker_id: str) -> Iterator[tuple[float, Outcome]]:
        """Return the outcomes of the shard, each with the time when its task ended. Call this only when the process is
        dead.
        """
        for length, half in zip(self._lengths, self._halves, strict=True):
            at = 0
            while at < length:
                (size,) = _LENGTH.unpack_from(half, at)
                at += 4 + size
                of_shard, ended, task_id, token, retries, *others = marshal.loads(half[at - size : at])  # noqa: S302 - our own
                if of_shard == shard_index:
                    yield ended, Outcome(partial_lease(token, task_id, worker_id, retries), *others)


class StatusBoard:
    """The block of memory that a supervisor and one child process share. The supervisor makes the board with
    `create_shared` and passes it to the child.
    """

    def __init__(self, memory: Any, slots: int, shard_count: int) -> None:
        self._memory, self.slots, self.shard_count = memory, slots, shard_count
        view, at = memoryview(memory).cast("B"), 0

        def take(size: int) -> memoryview:
            nonlocal at
            at += size
            return view[at - size : at]

        self._done = take(8).cast("q")
        self._ticked = take(8).cast("d")
        self._polled = take(8 * shard_count).cast("d")
        self.fences = take(8 * shard_count).cast("q")
        """The fence number of each shard, which grows each time the supervisor raises the fence."""
        self._lowered = take(8 * shard_count).cast("q")
        self._activity_header = take(16).cast("q")
        """Two numbers of the activity report: its version, which is odd while the report is replaced, and its
        length."""
        self._activity = take(ACTIVITY_BYTES)
        self._settled = take(8 * shard_count).cast("q")
        """Number of reported outcomes from slots, for each shard."""
        self._ended = [take(8 * shard_count).cast("q") for _ in range(slots)]
        """Number of outcomes that slots have recorded, for each slot and shard."""
        self._thread_ids = take(8 * slots).cast("q")
        self._versions = take(8 * slots).cast("q")
        self._started_tokens = [take(8 * STARTED_TOKENS_PER_SLOT).cast("q") for _ in range(slots)]
        self._records = [take(SLOT_BYTES) for _ in range(slots)]
        self.outcome_logs = [OutcomeLog(take(OutcomeLog.BYTES)) for _ in range(slots)]
        self._next = [0] * slots
        """Position at which each slot's next token is written. Only the child uses this list."""
        self._is_ending = False

    @classmethod
    def create_shared(cls, context: SpawnContext, slots: int, shard_count: int) -> StatusBoard:
        return cls(context.RawArray("B", cls.size(slots, shard_count)), slots, shard_count)

    @classmethod
    def in_file(cls, file: int, slots: int, shard_count: int) -> StatusBoard:
        """Make a board in a file (of `size`) that several processes have open. The file is closed here; the mapped
        memory stays.
        """
        try:
            return cls(mmap.mmap(file, cls.size(slots, shard_count)), slots, shard_count)
        finally:
            os.close(file)

    @classmethod
    def private(cls, slots: int, shard_count: int) -> StatusBoard:
        """Make a board for a worker without a supervisor."""
        return cls(bytearray(cls.size(slots, shard_count)), slots, shard_count)

    @staticmethod
    def size(slots: int, shard_count: int) -> int:
        """Return the size of the board in bytes."""
        return (
            32
            + ACTIVITY_BYTES
            + 32 * shard_count
            + (16 + 8 * shard_count + SLOT_BYTES + 8 * STARTED_TOKENS_PER_SLOT + OutcomeLog.BYTES) * slots
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return StatusBoard, (self._memory, self.slots, self.shard_count)

    # --- called by the child ---

    def begin(self, slot: int, shard_index: int, lease: Lease, started: float, timeout: float) -> None:
        """Record that a task begins in the slot. Called for every task; takes 0.5 µs."""
        name = lease.task_id.encode()
        record = self._records[slot]
        _ONE.pack_into(record, 0, started, timeout, shard_index, 1, lease.token, lease.retry_count & 0xFFFF, len(name))
        record[_ONE.size : _ONE.size + len(name)] = name
        self._started_tokens[slot][self._next[slot]] = lease.token << SHARD_INDEX_BITS | shard_index
        self._next[slot] = (self._next[slot] + 1) % STARTED_TOKENS_PER_SLOT
        self._versions[slot] += 1

    def begin_batch(self, slot: int, shard_index: int, leases: Sequence[Lease], started: float, timeout: float) -> None:
        record, at, count = self._records[slot], _RECORD.size, 0
        for lease in leases:
            name = lease.task_id.encode()
            end = at + _ENTRY.size + len(name)
            if end > SLOT_BYTES:
                break
            _ENTRY.pack_into(record, at, lease.token, lease.retry_count & 0xFFFF, len(name))
            record[at + _ENTRY.size : end] = name
            at, count = end, count + 1
        _RECORD.pack_into(record, 0, started, timeout, shard_index, count)
        begun = self._started_tokens[slot]
        for lease in leases:
            begun[self._next[slot]] = lease.token << SHARD_INDEX_BITS | shard_index
            self._next[slot] = (self._next[slot] + 1) % STARTED_TOKENS_PER_SLOT
        self._versions[slot] += 1

    def end(self, slot: int) -> None:
        self._versions[slot] += 1

    def extend(self, slot: int, seconds: float) -> None:
        """Move the time limit of the slot's task. Called by the slot's thread, or by a thread for which the slot's
        thread waits.
        """
        (timeout,) = _TIMEOUT.unpack_from(self._records[slot], 8)
        _TIMEOUT.pack_into(self._records[slot], 8, timeout + seconds)
        self._versions[slot] += 2

    def record_poll(self, shard_index: int) -> None:
        """Record that the fetch loop of this queue made a round: the server has answered, or no call was necessary."""
        self._polled[shard_index] += 1

    def record_tick(self) -> None:
        """Record that the process responds. Called 2 to 20 times a second."""
        self._ticked[0] = math.inf if self._is_ending else self._ticked[0] + 1

    def set_thread(self, slot: int, thread_id: int) -> None:
        """Set the operating system's id of the slot's thread."""
        self._thread_ids[slot] = thread_id

    def record_outcomes(self, slot: int, shard_index: int, count: int) -> None:
        """Count outcomes of the slot that must be reported. Called by the thread or loop that uses the slot."""
        self._ended[slot][shard_index] += count

    def set_settled(self, shard_index: int, count: int) -> None:
        """Set the number of reported outcomes from slots. Called by one thread at a time."""
        self._settled[shard_index] = count

    def end_ticking(self) -> None:
        """Record that the process is ending, so the supervisor no longer expects a response."""
        self._is_ending = True
        self._ticked[0] = math.inf

    def fence(self, shard_index: int) -> Fence:
        return Fence(self.fences, self._lowered, shard_index)

    def add_done(self, tasks: int) -> None:
        self._done[0] += tasks

    def read_start(self, slot: int) -> float | None:
        """Return the time when the task in this slot began, or None while the slot runs no task."""
        started: float = _STARTED.unpack_from(self._records[slot], 0)[0]
        return started if self._versions[slot] & 1 else None

    def set_activity(self, report: bytes) -> None:
        """Replace the activity report about the slots. Called by one thread only."""
        self._activity_header[0] += 1
        self._activity[: len(report)] = report
        self._activity_header[1] = len(report)
        self._activity_header[0] += 1

    # --- called by the supervisor ---

    @property
    def done(self) -> int:
        """Return the number of tasks whose outcomes were reported."""
        return self._done[0]

    @property
    def ticks(self) -> float:
        """Return a number that grows while the process responds; 0 before the process has begun, infinite when it is
        ending.
        """
        return self._ticked[0]

    def polls(self, shard_index: int) -> float:
        """Return a number that grows with each round of the shard's fetch loop; 0 before the first round."""
        return self._polled[shard_index]

    def count_unreported(self, shard_index: int) -> tuple[int, int]:
        """Return two numbers of outcomes from slots: those not yet reported, and those reported."""
        settled = self._settled[shard_index]
        return sum(ended[shard_index] for ended in self._ended) - settled, settled

    def versions(self) -> list[int]:
        """Return a number for each slot that changes when a task in the slot begins, ends, or gets more time. An odd
        number means that a task is running.
        """
        return self._versions.tolist()

    def thread_id(self, slot: int) -> int:
        """Return the operating system's id of the slot's thread; 0 before the thread has begun."""
        return self._thread_ids[slot]

    def read_occupied_slot(self, slot: int) -> OccupiedSlot | None:
        """Return the task or batch that runs in this slot; None while the slot runs no task."""
        return self._read(slot)

    def raise_fence(self, shard_index: int) -> int:
        """Prevent the start of all leases that the child has received until now. Tasks that have started go on. Return
        the new fence number.
        """
        self.fences[shard_index] += 1
        return self.fences[shard_index]

    def lower_fence(self, shard_index: int, number: int) -> None:
        """Let the child fetch again, because all leases that were received before the fence got this ``number`` have
        been given back.
        """
        self._lowered[shard_index] = number

    def started_tokens(self, shard_index: int) -> set[int]:
        """Return the tokens of the tasks that started last. These include all tasks whose outcomes are not reported."""
        mask = (1 << SHARD_INDEX_BITS) - 1
        return {
            entry >> SHARD_INDEX_BITS
            for ring in self._started_tokens
            for entry in ring.tolist()
            if entry and entry & mask == shard_index
        }

    def logged_outcomes(self, shard_index: int, worker_id: str) -> list[Outcome]:
        """Return the outcomes of the tasks that ended last. These include all outcomes that are not reported. Call this
        only when the process is dead.
        """
        found = [entry for log in self.outcome_logs for entry in log.read(shard_index, worker_id)]
        found.sort(key=itemgetter(0))
        return [outcome for _, outcome in found[-MAX_REPORTED_OUTCOMES:]]

    def activity(self) -> bytes:
        """Return the process's last report about its slots. Empty if the process has sent none, or died while it
        replaced the report.
        """
        for _ in range(100):
            version = self._activity_header[0]
            report = bytes(self._activity[: self._activity_header[1]])
            if version == self._activity_header[0] and not version & 1:
                return report
        return b""

    def count_running(self) -> int:
        """Return the number of occupied slots."""
        return sum(version & 1 for version in self._versions.tolist())

    def overdue(self, now: float) -> list[OccupiedSlot]:
        """Return the slots whose tasks have exceeded their time limit. If the limit is not exceeded, the other fields
        of the slot are not read, because this method is called often.
        """
        found: list[OccupiedSlot] = []
        for slot, version in enumerate(self._versions.tolist()):
            if version & 1 and now > sum(_LIMIT.unpack_from(self._records[slot])):
                running = self._read(slot)
                if running is not None and now > running.started + running.timeout:
                    found.append(running)
        return found

    def list_running(self) -> list[OccupiedSlot]:
        found = (self._read(slot) for slot in range(self.slots))
        return [running for running in found if running is not None]

    def _read(self, slot: int) -> OccupiedSlot | None:
        for _ in range(100):  # a record that changed during each of 100 reads is treated as empty
            version = self._versions[slot]
            if not version & 1:
                return None
            record = bytes(self._records[slot])
            if version == self._versions[slot]:
                break
        else:
            return None
        started, timeout, shard_index, count = _RECORD.unpack_from(record)
        at, tasks = _RECORD.size, []
        for _ in range(count):
            token, retries, size = _ENTRY.unpack_from(record, at)
            at += _ENTRY.size
            tasks.append((token, retries, record[at : at + size].decode()))
            at += size
        return OccupiedSlot(shard_index, started, timeout, tuple(tasks))
