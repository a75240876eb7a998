"""Values that hold for a block of code, wherever it calls to or awaits."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Generic, TypeVar

from .context import TaskContext, running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")


class Ambient(Generic[T]):
    """What a block says, or else what the running task has.

    A task that runs inside of the block (in tests tasks may run where they are enqueued) has its own value, not the
    block's: a value counts only in the task in which it was said. So running a task costs nothing for this.
    """

    def __init__(self, name: str, of_task: Callable[[TaskContext], T]) -> None:
        self._said: ContextVar[tuple[T, TaskContext] | None] = ContextVar(name, default=None)
        self._of_task = of_task

    def get(self) -> T:
        task, said = running.get(), self._said.get()
        return said[0] if said is not None and said[1] is task else self._of_task(task)

    @contextmanager
    def hold(self, value: T) -> Iterator[None]:
        token = self._said.set((value, running.get()))
        try:
            yield
        finally:
            self._said.reset(token)
