"""How threads of a worker wake each other. `threading.Event` and `queue.Queue` would cost as much as a short task."""

from __future__ import annotations

import _thread
from collections.abc import Callable


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
        except RuntimeError:  # it was notified before
            return

    def wait(self, seconds: float, is_due: Callable[[], bool] = bool) -> None:
        """Sleep until `notify` is called, or ``seconds`` have passed.

        ``is_due`` is called once other threads can see ``is_waiting``, so that nothing that happened before is missed.
        """
        self.is_waiting = True
        if not is_due():
            self._lock.acquire(timeout=max(0.0, seconds))
        self.is_waiting = False


class IdleSlots:
    """Where slots wait for work, each with a lock of its own: one is woken at a time, the last to come first."""

    def __init__(self) -> None:
        self._locks: list[_thread.LockType] = []

    def __len__(self) -> int:
        return len(self._locks)

    def wait(self, lock: _thread.LockType, has_work: Callable[[], bool]) -> None:
        """Sleep until woken. ``lock`` is the thread's own, held by it."""
        self._locks.append(lock)
        if has_work():
            try:
                self._locks.remove(lock)
            except ValueError:  # somebody is waking this thread
                lock.acquire()
            return
        lock.acquire()

    def wake(self, count: int) -> None:
        for _ in range(count):
            try:
                lock = self._locks.pop()
            except IndexError:
                return
            lock.release()
