"""Values that hold for a block of code, wherever it calls to or awaits."""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Generic, TypeVar

from .context import TaskContext, running

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

T = TypeVar("T")


class Block(Generic[T]):
    """Holds a value from ``with`` to its end, once. No decorator: around a coroutine function it would hold nothing."""

    __slots__ = ("_said", "_token", "_value")

    def __init__(self, said: ContextVar[tuple[T, TaskContext] | None], value: T) -> None:
        self._said, self._value = said, value
        self._token: Token[tuple[T, TaskContext] | None] | None = None

    def __enter__(self) -> None:
        if self._token is not None:
            raise RuntimeError("this block was entered before: make one for each `with`")
        self._token = self._said.set((self._value, running.get()))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._token is not None  # noqa: S101 - it was entered
        self._said.reset(self._token)


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

    def hold(self, value: T) -> Block[T]:
        """A context manager."""
        return Block(self._said, value)
