"""Lets threads of a worker wake each other. `threading.Event` and `queue.Queue` would cost as much as a short task."""

from __future__ import annotations

import _thread
from collections.abc import Callable
from typing import Protocol


class Wakeup:
    """One thread waits, any thread notifies. A notification while no thread waits ends the next wait at once."""

    __slots__ = ("_lock", "is_waiting")

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()
        self._lock.acquire()
        self.is_waiting = False
        """Whether `notify` would wake a thread. A caller that notifies for every task reads this first."""

    def notify(self) -> None:
        self.is_waiting = False
        try:
            self._lock.release()
        except RuntimeError:  # the lock was released before
            return

    def wait(self, seconds: float, is_due: Callable[[], bool] = bool) -> None:
        """Sleep until `notify` is called, or ``seconds`` have passed.

        ``is_due`` is called once other threads can see ``is_waiting``, so that nothing that happened before is missed.
        """
        self.is_waiting = True
        if not is_due():
            self._lock.acquire(timeout=max(0.0, seconds))
        self.is_waiting = False


class IdleSlot(Protocol):
    """A slot without work."""

    def wake(self) -> object:
        """Let its thread go on with it."""

    def go_on(self) -> object:
        """Take work, on the event loop."""


class IdleSlots:
    """Slots that wait for work. The last to come is the first to be woken."""

    def __init__(self) -> None:
        self._slots: list[IdleSlot] = []

    def __len__(self) -> int:
        return len(self._slots)

    def add(self, slot: IdleSlot, has_work: Callable[[], bool]) -> bool:
        """Let the slot wait. False if there is work already, so that it does not wait."""
        self._slots.append(slot)
        if not has_work():
            return True
        try:
            self._slots.remove(slot)
        except ValueError:  # another thread is waking the slot
            return True
        return False

    def take(self, count: int) -> list[IdleSlot]:
        """Up to ``count`` slots, which no longer wait here."""
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
