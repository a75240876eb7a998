"""Measures the progress of a worker process from outside, with the supervisor's own clock.

Code of a task can damage its process: patch its clock, take the memory that its threads need, keep its interpreter
lock, or stop it. So the process writes counts to its status board, and the supervisor notes when each count last
changed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django_fairque.worker.common.status_board import OccupiedSlot, StatusBoard

MAX_LOOK_SECONDS = 1.0
"""Maximum seconds between two updates of the watch that count as time without progress. During a longer pause the
supervisor did not run either, for example because the whole machine was suspended."""
BUSY_SHARE = 0.3
"""Fraction of the processor time that all slots used together. A slot that used more than this counts as busy."""
MIN_BUSY_SHARE = 0.02
"""Minimum use of a processor (1 is a whole processor) for a slot to count as busy. The value is low because a busy
thread gets little time on a machine with much other work."""


class BoardWatch:
    """Records when each value of a status board last changed. Only time during which `update` was called regularly is
    counted.
    """

    def __init__(self, status_board: StatusBoard, now: float) -> None:
        self._board = status_board
        self._looked_at = now
        self._time = 0.0
        self._ticks = 0.0
        self._ticked_at = 0.0
        self._polls = [0.0] * status_board.shard_count
        self._polled_at = [0.0] * status_board.shard_count
        self._settled = [0] * status_board.shard_count
        self._settled_at = [0.0] * status_board.shard_count
        self._versions = [0] * status_board.slots
        self._changed_at = [0.0] * status_board.slots
        self._thread_seconds: dict[int, float] | None = None
        """Processor time of each slot's thread when the process stopped responding, by slot."""
        self._sampled_at = 0.0
        self._process_seconds: float | None = None

    def update(self, now: float) -> None:
        board = self._board
        self._time += min(now - self._looked_at, MAX_LOOK_SECONDS)
        self._looked_at = now
        if board.ticks != self._ticks:
            self._ticks, self._ticked_at, self._thread_seconds = board.ticks, self._time, None
        for shard_index in range(board.shard_count):
            if (polls := board.polls(shard_index)) != self._polls[shard_index]:
                self._polls[shard_index], self._polled_at[shard_index] = polls, self._time
            unreported, settled = board.count_unreported(shard_index)
            if unreported <= 0 or settled != self._settled[shard_index]:
                self._settled[shard_index], self._settled_at[shard_index] = settled, self._time
        versions = board.versions()
        if versions != self._versions:
            for slot, version in enumerate(versions):
                if version != self._versions[slot]:
                    self._changed_at[slot] = self._time
            self._versions = versions

    @property
    def silent_seconds(self) -> float:
        """Return the seconds for which the process has not responded; 0 before the process has begun and when it is
        ending.
        """
        return self._time - self._ticked_at if 0 < self._ticks < float("inf") else 0.0

    def has_polled(self, shard_index: int) -> bool:
        return self._polls[shard_index] > 0

    def poll_seconds(self, shard_index: int) -> float:
        """Return the seconds since the shard's fetch loop made progress, or since the process was started."""
        return self._time - self._polled_at[shard_index]

    def longest_poll_seconds(self, without: Collection[int] = ()) -> float:
        """Return the seconds since progress of the fetch loop that has made no progress for longest."""
        shards = (shard for shard in range(len(self._polls)) if shard not in without)
        return max((self.poll_seconds(shard) for shard in shards), default=0.0)

    def unreported_seconds(self, without: Collection[int] = ()) -> float:
        """Return the seconds for which outcomes have waited while no outcome was reported, for the shard with the
        longest time.
        """
        shards = (shard for shard in range(len(self._settled_at)) if shard not in without)
        return max((self._time - self._settled_at[shard] for shard in shards), default=0.0)

    def beyond_limit(self, grace: float) -> list[OccupiedSlot]:
        """Return the slots whose task has exceeded its time limit by more than ``grace`` seconds. The supervisor measures this
        with its own clock: the start time that the process wrote is not used."""
        found = []
        for slot, version in enumerate(self._versions):
            if version & 1 and self._time - self._changed_at[slot] > grace:
                running = self._board.read_occupied_slot(slot)
                if running is not None and self._time - self._changed_at[slot] > running.timeout + grace:
                    found.append(running)
        return found

    def has_run(self, running: OccupiedSlot) -> bool:
        """Return whether the supervisor saw the task run for about as long as its time limit. If not, the process's
        clock is wrong.
        """
        for slot, version in enumerate(self._versions):
            if version & 1 and self._board.read_occupied_slot(slot) == running:
                return self._time - self._changed_at[slot] > running.timeout - 2 * MAX_LOOK_SECONDS
        return True

    # --- a process that does not respond ---

    def sample(self, pid: int) -> None:
        """Record the processor time of the slots' threads, once in each period without a response."""
        if self._thread_seconds is None:
            self._thread_seconds, self._sampled_at = self._read_thread_seconds(pid), self._time
            self._process_seconds = _processor_seconds(pid)

    @property
    def sampled_seconds(self) -> float:
        """Return the seconds since the processor time was recorded by `sample`."""
        return self._time - self._sampled_at if self._thread_seconds is not None else 0.0

    def describe_process(self, pid: int) -> str:
        """Describe in words how much processor time the process has used since `sample`."""
        if is_stopped(pid):
            return "is stopped by a signal"
        before, now = self._process_seconds, _processor_seconds(pid)
        if before is None or now is None:
            return "runs code that does not let other threads run"
        if now - before > MIN_BUSY_SHARE * self.sampled_seconds:
            return "uses processor time: C code keeps the interpreter lock (often a regular expression)"
        return "uses little processor time: C code waits and keeps the interpreter lock, or the system is overloaded"

    def busy_slots(self, pid: int) -> list[OccupiedSlot]:
        """Return the slots whose threads have used the processor since `sample`: one of these threads keeps the
        interpreter lock. Empty if this is not known.
        """
        elapsed = self.sampled_seconds
        if not self._thread_seconds or not elapsed:
            return []
        before = self._thread_seconds
        used = {slot: seconds - before.get(slot, 0.0) for slot, seconds in self._read_thread_seconds(pid).items()}
        least = max(BUSY_SHARE * sum(used.values()), MIN_BUSY_SHARE * elapsed)
        busy = [slot for slot, seconds in used.items() if seconds > least]
        found = (self._board.read_occupied_slot(slot) for slot in busy)
        return [running for running in found if running is not None]

    def _read_thread_seconds(self, pid: int) -> dict[int, float]:
        found = {}
        for slot, version in enumerate(self._versions):
            if version & 1 and (thread_id := self._board.thread_id(slot)):
                fields = _stat_fields(f"{pid}/task/{thread_id}")
                if fields:
                    found[slot] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return found


def _stat_fields(process: str) -> list[bytes]:
    """Read the fields of /proc/PID/stat, beginning with the third field, the state. Empty if there is no /proc."""
    try:
        return Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return []


def is_stopped(pid: int) -> bool:
    """Return whether a signal has stopped the process (state T). Without /proc, this can be determined only for
    children of this process.
    """
    if fields := _stat_fields(str(pid)):
        return fields[0] == b"T"
    if not hasattr(os, "waitid"):
        return False
    try:
        return os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
    except OSError:
        return False


def _processor_seconds(pid: int) -> float | None:
    """Return the processor time that the process has used, or None if it is unknown. Linux has a clock for each process."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except (OSError, OverflowError, ValueError):
        return None
