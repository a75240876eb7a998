"""What a child is doing right now, in memory that its supervisor shares.

The supervisor must know this when the child is dead, or deaf because something holds its interpreter lock. So it is
not told but looks: per slot, which leases run, since when and for how long they may; per queue, when the loop last
came round. Times are `time.monotonic()`, which is one clock for all processes of a machine.

A slot's turn is written last when it begins and first when it ends, so a reader that finds the same odd turn before
and after has read one consistent record.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django_fairque.engine.lease import LeaseKey

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.context import SpawnContext

    from django_fairque.engine.lease import Lease

SLOT_BYTES = 32_768
"""Room for a batch of 900 tasks with generated ids; of those beyond it nothing is known when the child dies."""
_ONE = struct.Struct("<ddHHqHH")
_RECORD = struct.Struct("<ddHH")
_ENTRY = struct.Struct("<qHH")


@dataclass(frozen=True)
class Running:
    """One occupied slot. ``tasks`` are ``(token, retry count, id)``; several for a batch."""

    lane: int
    started: float
    timeout: float
    tasks: tuple[tuple[int, int, str], ...]

    @property
    def tokens(self) -> list[int]:
        return [token for token, _, _ in self.tasks]

    @property
    def keys(self) -> list[LeaseKey]:
        return [LeaseKey(name, token) for token, _, name in self.tasks]


class Board:
    """The shared block. Made by the supervisor with `shared`, given to the child's process, used by both."""

    def __init__(self, memory: Any, slots: int, lanes: int) -> None:
        self._memory = memory
        self.slots = slots
        self.lanes = lanes
        self._attach()

    @classmethod
    def shared(cls, context: SpawnContext, slots: int, lanes: int) -> Board:
        return cls(context.RawArray("B", cls.size(slots, lanes)), slots, lanes)

    @classmethod
    def in_file(cls, file: int, slots: int, lanes: int) -> Board:
        """For processes that have the same file (of `size`) open, which is closed here: the memory stays."""
        try:
            return cls(mmap.mmap(file, cls.size(slots, lanes)), slots, lanes)
        finally:
            os.close(file)

    @classmethod
    def private(cls, slots: int, lanes: int) -> Board:
        """For a worker without a supervisor."""
        return cls(bytearray(cls.size(slots, lanes)), slots, lanes)

    @staticmethod
    def size(slots: int, lanes: int) -> int:
        """Bytes."""
        return 8 + 8 * lanes + (8 + SLOT_BYTES) * slots

    def __reduce__(self) -> tuple[Any, ...]:
        return Board, (self._memory, self.slots, self.lanes)

    def _attach(self) -> None:
        view, polled, turns = (
            memoryview(self._memory).cast("B"),
            8 + 8 * self.lanes,
            self.size(0, self.lanes) + 8 * self.slots,
        )
        self._done = view[:8].cast("q")
        self._polled = view[8:polled].cast("d")
        self._turns = view[polled:turns].cast("q")
        self._records = [view[turns + i * SLOT_BYTES : turns + (i + 1) * SLOT_BYTES] for i in range(self.slots)]

    # --- the child's side ---

    def begin(self, slot: int, lane: int, lease: Lease, started: float, timeout: float) -> None:
        """One task has begun. Called for every task: 0.5 µs."""
        name = lease.task_id.encode()
        record = self._records[slot]
        _ONE.pack_into(record, 0, started, timeout, lane, 1, lease.token, lease.retry_count & 0xFFFF, len(name))
        record[_ONE.size : _ONE.size + len(name)] = name
        self._turns[slot] += 1

    def begin_batch(self, slot: int, lane: int, leases: Sequence[Lease], started: float, timeout: float) -> None:
        record, at, count = self._records[slot], _RECORD.size, 0
        for lease in leases:
            name = lease.task_id.encode()
            end = at + _ENTRY.size + len(name)
            if end > SLOT_BYTES:
                break
            _ENTRY.pack_into(record, at, lease.token, lease.retry_count & 0xFFFF, len(name))
            record[at + _ENTRY.size : end] = name
            at, count = end, count + 1
        _RECORD.pack_into(record, 0, started, timeout, lane, count)
        self._turns[slot] += 1

    def end(self, slot: int) -> None:
        self._turns[slot] += 1

    def polled(self, lane: int) -> None:
        """The loop of this queue came round: it has the server's answer, or no question to ask."""
        self._polled[lane] = time.monotonic()

    def count(self, tasks: int) -> None:
        self._done[0] += tasks

    # --- the supervisor's side ---

    @property
    def done(self) -> int:
        """Tasks whose outcomes were sent."""
        return self._done[0]

    def last_poll(self, but: Sequence[int] = ()) -> float:
        """When the queue that is furthest behind came round, of all but these lanes; 0 before all have."""
        return min((at for lane, at in enumerate(self._polled) if lane not in but), default=math.inf)

    def running(self) -> list[Running]:
        found = (self._read(slot) for slot in range(self.slots))
        return [running for running in found if running is not None]

    def _read(self, slot: int) -> Running | None:
        for _ in range(100):  # of records that change this fast none is worth knowing
            turn = self._turns[slot]
            if not turn & 1:
                return None
            record = bytes(self._records[slot])
            if turn == self._turns[slot]:
                return _decode(record)
        return None


def _decode(record: bytes) -> Running:
    started, timeout, lane, count = _RECORD.unpack_from(record)
    at, tasks = _RECORD.size, []
    for _ in range(count):
        token, retries, size = _ENTRY.unpack_from(record, at)
        at += _ENTRY.size
        tasks.append((token, retries, record[at : at + size].decode()))
        at += size
    return Running(lane, started, timeout, tuple(tasks))
