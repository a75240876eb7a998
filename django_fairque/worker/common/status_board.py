"""The current work of a child process, in memory that it shares with its supervisor.

The supervisor must know this when the child is dead, or can't answer because something holds its interpreter lock. So the child
sends no messages about it; the supervisor reads the memory: for each slot, which leases run, since when, and for how long they
may; counts that grow while the process, and the fetch loop of each shard, make progress; and how many outcomes are not reported.
Times are `time.monotonic()`, which is one clock for all processes of a machine. But a task may have patched it, so the supervisor
judges by its own clock when a count last changed (`board_watch`).

A slot's version is written last when a task starts and first when it ends. A reader that finds the same odd version before and
after has read one consistent record.

The supervisor gives back leases of a child that does not respond (`child_process`). The child may respond again at any moment.
So that it starts none of them, each shard has a fence number. The supervisor raises the fence, waits until everything that the
child wrote before is visible, reads which tokens have started, and gives back all others. The child writes the token of a task
first and then compares the fence number with the one under which the lease was received; if they differ, the task does not start.
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
"""Room for a batch of 900 tasks with generated ids. When the child dies, nothing is known about the tasks beyond this number."""
STARTED_TOKENS_PER_SLOT = 4096
"""Number of tokens that are kept for each slot: those of the tasks that began last. A power of two. Must exceed the number of
tasks that one slot can end before their outcomes are reported, which the size of a fetch bounds (`MAX_FETCH_LEASES`)."""
OUTCOME_LOG_HALF_BYTES = 32_768
"""Bytes of each of the two halves of a slot's `OutcomeLog`: room for 400 outcomes without a result, or for one with a result of
32 KB. A task with a larger outcome runs again."""
MAX_REPORTED_OUTCOMES = 1000
"""Maximum number of outcomes of a shard that are reported for a dead process: the latest ones. Two calls report fewer than
this."""
ACTIVITY_BYTES = 8_192
"""Room for a report of a process about its slots, which has 8,000 bytes at most (`MAX_ACTIVITY_BYTES`)."""
SHARD_INDEX_BITS = 16
"""Number of low bits of a ring entry that hold the shard index. The token is in the higher bits."""
_ONE = struct.Struct("<ddHHqHH")
_RECORD = struct.Struct("<ddHH")
_LIMIT = struct.Struct("<dd")
"""Start time, and the seconds for which the task may run."""
_TIMEOUT = struct.Struct("<d")
_STARTED = struct.Struct("<d")
_ENTRY = struct.Struct("<qHH")
_LENGTH = struct.Struct("<I")


def partial_lease(token: int, task_id: str, worker_id: str, retry_count: int = 0) -> Lease:
    """Make a lease with only these fields, which are enough for an outcome."""
    known = {"id": task_id.encode(), "token": b"%d" % token, "lease": b"0", "retries": b"%d" % retry_count}
    return Lease([known.get(field, b"") for field in LEASE_FIELDS], worker_id, 0.0)


@dataclass(frozen=True)
class OccupiedSlot:
    """One occupied slot. ``tasks`` are ``(token, retry count, id)``; several for a batch."""

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
    """The fence of one shard, as the child sees it. Two numbers, both 0 for a worker without a supervisor."""

    __slots__ = ("_lowered", "_raised", "_shard_index")

    def __init__(self, raised: Sequence[int] = (0,), lowered: Sequence[int] = (0,), shard_index: int = 0) -> None:
        self._raised, self._lowered, self._shard_index = raised, lowered, shard_index

    @property
    def number(self) -> int:
        """Grows each time the supervisor raises the fence. Leases that were received under a lower number do not start."""
        return self._raised[self._shard_index]

    @property
    def is_lowered(self) -> bool:
        """Whether the leases behind the fence have been given back, so that new ones may be fetched."""
        return self._lowered[self._shard_index] == self._raised[self._shard_index]


class OutcomeLog:
    """Outcomes of the tasks that have ended in a slot, for its supervisor to report if the process is killed.

    A process collects outcomes for up to 10 ms, or as long as a call to the server takes, before it reports them. Without
    this log those tasks would run again. The server refuses outcomes that the process had reported: their leases have ended.

    The slot fills one half, and then empties and fills the other, so a half's worth of outcomes is always there. The length of a
    half is written after its contents, so the contents are complete wherever the process was killed.
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
            2,  # this version takes half the time of later ones
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
        """The outcomes of the shard, and when each task ended. When the process is dead."""
        for length, half in zip(self._lengths, self._halves, strict=True):
            at = 0
            while at < length:
                (size,) = _LENGTH.unpack_from(half, at)
                at += 4 + size
                of_shard, ended, task_id, token, retries, *others = marshal.loads(half[at - size : at])  # noqa: S302 - our own
                if of_shard == shard_index:
                    yield ended, Outcome(partial_lease(token, task_id, worker_id, retries), *others)


class StatusBoard:
    """The shared block. Made by the supervisor with `create_shared`, given to the child's process, used by both."""

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
        """Number of each shard's fence, which grows each time the supervisor raises the fence."""
        self._lowered = take(8 * shard_count).cast("q")
        self._activity_header = take(16).cast("q")
        """The version, which is odd while the report is replaced, and its length."""
        self._activity = take(ACTIVITY_BYTES)
        self._settled = take(8 * shard_count).cast("q")
        """Number of reported outcomes of slots, for each shard."""
        self._ended = [take(8 * shard_count).cast("q") for _ in range(slots)]
        """Number of outcomes, for each slot and shard."""
        self._thread_ids = take(8 * slots).cast("q")
        self._versions = take(8 * slots).cast("q")
        self._started_tokens = [take(8 * STARTED_TOKENS_PER_SLOT).cast("q") for _ in range(slots)]
        self._records = [take(SLOT_BYTES) for _ in range(slots)]
        self.outcome_logs = [OutcomeLog(take(OutcomeLog.BYTES)) for _ in range(slots)]
        self._next = [0] * slots
        """Position of the next token of each slot, in the child."""
        self._is_ending = False

    @classmethod
    def create_shared(cls, context: SpawnContext, slots: int, shard_count: int) -> StatusBoard:
        return cls(context.RawArray("B", cls.size(slots, shard_count)), slots, shard_count)

    @classmethod
    def in_file(cls, file: int, slots: int, shard_count: int) -> StatusBoard:
        """Make a board for processes that have the same file (of `size`) open. The file is closed here; the memory stays."""
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
        """Bytes."""
        return (
            32
            + ACTIVITY_BYTES
            + 32 * shard_count
            + (16 + 8 * shard_count + SLOT_BYTES + 8 * STARTED_TOKENS_PER_SLOT + OutcomeLog.BYTES) * slots
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return StatusBoard, (self._memory, self.slots, self.shard_count)

    # --- the child's side ---

    def begin(self, slot: int, shard_index: int, lease: Lease, started: float, timeout: float) -> None:
        """One task has begun. Called for every task: 0.5 µs."""
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
        """Move the time limit of the slot's task. By its thread, or one that it waits for."""
        (timeout,) = _TIMEOUT.unpack_from(self._records[slot], 8)
        _TIMEOUT.pack_into(self._records[slot], 8, timeout + seconds)
        self._versions[slot] += 2

    def record_poll(self, shard_index: int) -> None:
        """The loop of this queue came round: it has the server's answer, or no question to ask."""
        self._polled[shard_index] += 1

    def record_tick(self) -> None:
        """The process responds: written 2 to 20 times a second."""
        self._ticked[0] = math.inf if self._is_ending else self._ticked[0] + 1

    def set_thread(self, slot: int, thread_id: int) -> None:
        """Set the system's id of the slot's thread."""
        self._thread_ids[slot] = thread_id

    def record_outcomes(self, slot: int, shard_index: int, count: int) -> None:
        """Count outcomes of the slot that are to be reported. Called by the owner of the slot."""
        self._ended[slot][shard_index] += count

    def set_settled(self, shard_index: int, count: int) -> None:
        """Set the number of reported outcomes of slots. Called by one thread at a time."""
        self._settled[shard_index] = count

    def end_ticking(self) -> None:
        """Record that the process is ending. From now on it is not expected to respond."""
        self._is_ending = True
        self._ticked[0] = math.inf

    def fence(self, shard_index: int) -> Fence:
        return Fence(self.fences, self._lowered, shard_index)

    def add_done(self, tasks: int) -> None:
        self._done[0] += tasks

    def read_start(self, slot: int) -> float | None:
        """Return the time when the task of this slot began, or None while the slot runs nothing."""
        started: float = _STARTED.unpack_from(self._records[slot], 0)[0]
        return started if self._versions[slot] & 1 else None

    def set_activity(self, report: bytes) -> None:
        """Replace the report about the slots. By one thread."""
        self._activity_header[0] += 1
        self._activity[: len(report)] = report
        self._activity_header[1] = len(report)
        self._activity_header[0] += 1

    # --- the supervisor's side ---

    @property
    def done(self) -> int:
        """Tasks whose outcomes were sent."""
        return self._done[0]

    @property
    def ticks(self) -> float:
        """Grows while the process responds; 0 before it has begun, infinite when it ends."""
        return self._ticked[0]

    def polls(self, shard_index: int) -> float:
        """Return a number that grows when the loop of this shard makes a round; 0 before the first round."""
        return self._polled[shard_index]

    def count_unreported(self, shard_index: int) -> tuple[int, int]:
        """Return the number of outcomes of slots that are not reported, and the number of those that are."""
        settled = self._settled[shard_index]
        return sum(ended[shard_index] for ended in self._ended) - settled, settled

    def versions(self) -> list[int]:
        """Return a number for each slot that changes when a task begins or ends there, or gets more time. An odd number
        means that a task is running."""
        return self._versions.tolist()

    def thread_id(self, slot: int) -> int:
        """Return the system's id of the slot's thread; 0 before the thread has begun."""
        return self._thread_ids[slot]

    def read_occupied_slot(self, slot: int) -> OccupiedSlot | None:
        """Describe the task or batch of this slot; None while it runs nothing."""
        return self._read(slot)

    def raise_fence(self, shard_index: int) -> int:
        """Prevent the start of all leases that the child has received until now. Leases that have begun go on. Return the fence's
        number."""
        self.fences[shard_index] += 1
        return self.fences[shard_index]

    def lower_fence(self, shard_index: int, number: int) -> None:
        """Let the child fetch again: all leases behind the fence with this ``number`` have been given back."""
        self._lowered[shard_index] = number

    def started_tokens(self, shard_index: int) -> set[int]:
        """Return the tokens of the tasks that began last. All tasks whose outcomes are not reported are among them."""
        mask = (1 << SHARD_INDEX_BITS) - 1
        return {
            entry >> SHARD_INDEX_BITS
            for ring in self._started_tokens
            for entry in ring.tolist()
            if entry and entry & mask == shard_index
        }

    def logged_outcomes(self, shard_index: int, worker_id: str) -> list[Outcome]:
        """Return the outcomes of the tasks that ended last; all unreported ones are among them. Call this when the process is
        dead."""
        found = [entry for log in self.outcome_logs for entry in log.read(shard_index, worker_id)]
        found.sort(key=itemgetter(0))
        return [outcome for _, outcome in found[-MAX_REPORTED_OUTCOMES:]]

    def activity(self) -> bytes:
        """The process's last report about its slots; empty if there is none, or the process died while it replaced it."""
        for _ in range(100):
            version = self._activity_header[0]
            report = bytes(self._activity[: self._activity_header[1]])
            if version == self._activity_header[0] and not version & 1:
                return report
        return b""

    def count_running(self) -> int:
        """The number of occupied slots."""
        return sum(version & 1 for version in self._versions.tolist())

    def overdue(self, now: float) -> list[OccupiedSlot]:
        """Return the slots whose tasks have exceeded their limit. For other slots, only the limit is read, because this is called
        often."""
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
        for _ in range(100):  # a record that changed during each of 100 reads is reported as empty
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
