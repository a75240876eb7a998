"""Lets threads of a worker wake each other. `threading.Event` and `queue.Queue` would take as much time as a short
task.
"""

from __future__ import annotations

import _thread
from collections.abc import Callable
from typing import Protocol


class Wakeup:
    """Lets one thread wait, and any thread wake it. A call of `notify` while no thread waits ends the next wait at
    once.
    """

    __slots__ = ("_lock", "is_waiting")

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()
        self._lock.acquire()
        self.is_waiting = False
        """Whether `notify` would wake a thread. A caller that would call `notify` for every task reads this first."""

    def notify(self) -> None:
        self.is_waiting = False
        try:
            self._lock.release()
        except RuntimeError:  # another thread has released the lock before
            return

    def wait(self, seconds: float, is_due: Callable[[], bool] = bool) -> None:
        """Sleep until `notify` is called, or ``seconds`` have passed.

        ``is_due`` returns whether there is already a reason not to sleep. The call is made after ``is_waiting`` is set,
        so an event in between is not missed.
        """
        self.is_waiting = True
        if not is_due():
            self._lock.acquire(timeout=max(0.0, seconds))
        self.is_waiting = False


class IdleSlot(Protocol):
    """A slot that waits for work."""

    def wake(self) -> object:
        """Let the slot's thread continue with the slot."""

    def go_on(self) -> object:
        """Take work for the slot. Called on the event loop."""


class IdleSlots:
    """The slots that wait for work. The slot that began to wait last is woken first."""

    def __init__(self) -> None:
        self._slots: list[IdleSlot] = []

    def __len__(self) -> int:
        return len(self._slots)

    def add(self, slot: IdleSlot, has_work: Callable[[], bool]) -> bool:
        """Add a slot that waits for work. Return False if there is work already, so that the slot does not wait."""
        self._slots.append(slot)
        if not has_work():
            return True
        try:
            self._slots.remove(slot)
        except ValueError:  # another thread is waking the slot
            return True
        return False

    def take(self, count: int) -> list[IdleSlot]:
        """Remove and return up to ``count`` slots that wait."""
        taken: list[IdleSlot] = []
        while len(taken) < count:
            try:
                taken.append(self._slots.pop())
            except IndexError:  # noqa: PERF203 - another thread took the last one
                break
        return taken

    def wake(self, count: int) -> None:
        for slot in self.take(count):
            slot.wake()
