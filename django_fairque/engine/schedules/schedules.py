"""``queue.schedules``: the schedules of a queue, plain and awaited."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django_fairque.engine.model.errors import TaskValidationError
from django_fairque.engine.schedules import operations as schedules
from django_fairque.engine.schedules import sharded as recurring

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_fairque.engine.inspection.pages import Listed
    from django_fairque.engine.model.task import Task
    from django_fairque.engine.queue.executor import AsyncSurvey, Survey
    from django_fairque.engine.schedules.schedule import Fired, Schedule, Template
    from django_fairque.engine.scripting.commands import Commands
    from django_fairque.engine.scripting.operations import AsyncRun, Run
    from django_fairque.engine.sharding.shards import Shards


class Schedules:
    """The schedules of one queue (``queue.schedules``)."""

    def __init__(self, shards: Shards, run: Run, survey: Survey) -> None:
        self._shards, self._run, self._survey = shards, run, survey

    def _holder(self, name: str) -> Commands:
        return self._survey(lambda shards: recurring.holder(shards, name))

    def add(self, name: str, *, task: Task | Template, now: float | None = None, **options: Any) -> Schedule:
        """Add a schedule, or change the one of this name; unless its timing changes it is due next when it was.

        Args:
            task: what to push each time: a call that was not sent (``my_task.s(1)``), a task that needs no arguments
                (``my_task``), or a `Task`. Its ``unique_for`` and ``debounce`` are not heeded; one with a delay, a moment at
                which it expires or dependencies is refused.
            cron: five fields, minute hour day-of-month month day-of-week; or
            every: seconds (or a timedelta) between two instants, at least 1, counted from ``start`` (now by default).
            timezone: the zone in which cron is meant; UTC by default.
            missed: what becomes of instants that nobody could fire for more than ``grace`` (60 seconds): ``"skip"``
                them, fire ``"one"``, the last, or ``"all"``.
            expires: seconds from an instant until its task is dead if it has not started; by default what the call says.
            enabled: False to add it switched off.
            source: code, settings, command or admin: who is in charge of it.

        Raises:
            TaskValidationError: it can't be understood, has an option that there is not, or would never fire; nothing
                was changed.
        """
        checked = _checked(options)
        place = self._survey(lambda shards: recurring.places(shards, name, task))
        return self._run(recurring.add(place, name, task, checked, now))

    def remove(self, name: str, *, now: float | None = None) -> bool:
        """Whether there was one."""
        return self._run(schedules.remove(self._holder(name), name, now))

    def enable(self, name: str, *, now: float | None = None) -> None:
        """Switch it on: from now, what would have been meanwhile is not missed."""
        self._run(schedules.set_enabled(self._holder(name), name, enabled=True, now=now))

    def disable(self, name: str, *, now: float | None = None) -> None:
        """Switch it off: it stays, and pushes nothing."""
        self._run(schedules.set_enabled(self._holder(name), name, enabled=False, now=now))

    def sign(self, name: str, *, now: float | None = None) -> None:
        """Sign what it pushes as it is kept now, with this process's key. Look at it before: `get`."""
        self._run(schedules.sign(self._holder(name), name, now))

    def run_now(self, name: str, *, now: float | None = None) -> str:
        """Push its task at once, beside its instants; the task's id."""
        return self._run(schedules.run_now(self._holder(name), name, now))

    def get(self, name: str) -> Schedule:
        """The schedule of that name; `TaskNotFoundError` when there is none."""
        return self._run(schedules.get(self._holder(name), name))

    def list(self) -> Listed[Schedule]:
        """All of them, by name."""
        return self._survey(recurring.list_all)

    def fire_due(self, limit: int = 100, *, now: float | None = None) -> Sequence[Fired]:
        """Fire what is due, each instant once whoever else does this at the same time. Workers do it by themselves."""
        return self._run(recurring.fire_due(self._shards, limit, now))

    def next_due(self, after: float | None = None) -> float | None:
        """Return when the next schedule is due after a moment (by default after now), as Unix times; None if none is."""
        return self._run(recurring.next_due(self._shards, after))


class AsyncSchedules:
    """`Schedules`, awaited."""

    def __init__(self, shards: Shards, run: AsyncRun, survey: AsyncSurvey) -> None:
        self._shards, self._run, self._survey = shards, run, survey

    async def _holder(self, name: str) -> Commands:
        return await self._survey(lambda shards: recurring.holder(shards, name))

    async def add(self, name: str, *, task: Task | Template, now: float | None = None, **options: Any) -> Schedule:
        checked = _checked(options)
        place = await self._survey(lambda shards: recurring.places(shards, name, task))
        return await self._run(recurring.add(place, name, task, checked, now))

    async def remove(self, name: str, *, now: float | None = None) -> bool:
        return await self._run(schedules.remove(await self._holder(name), name, now))

    async def enable(self, name: str, *, now: float | None = None) -> None:
        await self._run(schedules.set_enabled(await self._holder(name), name, enabled=True, now=now))

    async def disable(self, name: str, *, now: float | None = None) -> None:
        await self._run(schedules.set_enabled(await self._holder(name), name, enabled=False, now=now))

    async def sign(self, name: str, *, now: float | None = None) -> None:
        await self._run(schedules.sign(await self._holder(name), name, now))

    async def run_now(self, name: str, *, now: float | None = None) -> str:
        return await self._run(schedules.run_now(await self._holder(name), name, now))

    async def get(self, name: str) -> Schedule:
        return await self._run(schedules.get(await self._holder(name), name))

    async def list(self) -> Listed[Schedule]:
        return await self._survey(recurring.list_all)

    async def fire_due(self, limit: int = 100, *, now: float | None = None) -> Sequence[Fired]:
        return await self._run(recurring.fire_due(self._shards, limit, now))

    async def next_due(self, after: float | None = None) -> float | None:
        return await self._run(recurring.next_due(self._shards, after))


OPTIONS = ("cron", "every", "timezone", "start", "missed", "grace", "expires", "enabled", "source", "declared")


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    from django_fairque.engine.model.options import nearest

    for name in options:
        if name not in OPTIONS:
            near = nearest(name, OPTIONS)
            hint = f"did you mean {near!r}?" if near else f"expected one of {', '.join(OPTIONS)}"
            raise TaskValidationError(f"schedules.add() has no option {name!r}; {hint}")
    return options
