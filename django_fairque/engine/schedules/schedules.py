"""``queue.schedules``: the schedules of a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django_fairque.engine.inspection.pages import PartialList
from django_fairque.engine.inspection.task_lookup import server_time
from django_fairque.engine.model.durations import check_integer, moment, to_us
from django_fairque.engine.model.errors import TaskValidationError, short, suggestion
from django_fairque.engine.model.ids import check_id
from django_fairque.engine.schedules import operations as schedules
from django_fairque.engine.scripting.operations import Driver, Operation, Read, parse_scores

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_fairque.engine.model.task import Task
    from django_fairque.engine.schedules.operations import Fired, Schedule, Template
    from django_fairque.engine.scripting.commands import Commands
    from django_fairque.engine.sharding.shards import AllShardsReader, Shards


class Schedules:
    """The schedules of one queue, returned by ``queue.schedules``. Most methods take ``now``, as those of the queue
    do.

    They raise `ShardsAwayError` if a schedule can't be looked up because some shards can't be reached.
    """

    def __init__(self, shards: Shards, run: Driver, read_all_shards: AllShardsReader) -> None:
        self._shards, self._run, self._read_all_shards = shards, run, read_all_shards

    def _holder(self, name: str) -> Commands:
        return self._read_all_shards(lambda shards: holder(shards, name))

    def add(self, name: str, *, task: Task | Template, now: float | None = None, **options: Any) -> Schedule:
        """Add a schedule, or change the one of this name. Unless its timing changes, its next run time stays.

        ``name`` is a text of at most 200 characters. ``task`` is pushed at each run time: a call that was not sent
        (``my_task.s(1)``), a task that needs no arguments (``my_task``), or a `Task`. Its ``unique_for`` and
        ``debounce`` are not used; one with a delay, a moment at which it expires or dependencies is refused. These are
        the ``options``; give ``cron`` or ``every``:

        - ``cron``: five fields, minute hour day-of-month month day-of-week.
        - ``every``: seconds (or a timedelta) between two run times, at least 1.
        - ``start``: when ``every`` begins to count; now by default.
        - ``timezone``: the zone of ``cron``; UTC by default.
        - ``missed``: what happens to run times that could not be fired for more than ``grace`` seconds (60 by
          default): ``"skip"`` them (the default), fire ``"one"``, the last, or ``"all"``.
        - ``expires``: seconds from a run time until its task is a dead letter if it has not started; by default that
          of the call.
        - ``enabled``: False to add it switched off; True by default.
        - ``source``: where it is declared: code (the default), settings, command or admin.
        - ``declared``: for a schedule from settings, its declaration.

        Returns the schedule. Raises `TaskValidationError` if it can't be understood, has an unknown option, would
        never fire, or is one of more than 1000; nothing is changed then.
        """
        checked = check_options(options)
        place = self._read_all_shards(lambda shards: places(shards, name, task))
        return self._run(add(place, name, task, checked, now))

    def remove(self, name: str, *, now: float | None = None) -> bool:
        """Remove a schedule. Tasks that it has pushed stay.

        ``name`` is its name. Returns whether there was one.
        """
        return self._run(schedules.remove(self._holder(name), name, now))

    def enable(self, name: str, *, now: float | None = None) -> None:
        """Switch a schedule on. Run times while it was off do not count as missed.

        ``name`` is its name. Raises `TaskNotFoundError` if there is none.
        """
        self._run(schedules.set_enabled(self._holder(name), name, enabled=True, now=now))

    def disable(self, name: str, *, now: float | None = None) -> None:
        """Switch a schedule off: it stays, and pushes nothing.

        ``name`` is its name. Raises `TaskNotFoundError` if there is none.
        """
        self._run(schedules.set_enabled(self._holder(name), name, enabled=False, now=now))

    def sign(self, name: str, *, now: float | None = None) -> None:
        """Sign the task that a schedule pushes, as it is kept now, with this process's key. Check it before, with
        `get`.

        ``name`` is its name. Raises `TaskNotFoundError` if there is none.
        """
        self._run(schedules.sign(self._holder(name), name, now))

    def run_now(self, name: str, *, now: float | None = None) -> str:
        """Push the task of a schedule at once, in addition to its run times.

        ``name`` is its name. Returns the task's id. Raises `TaskNotFoundError` if there is none, and what
        `FairQueue.push` raises.
        """
        return self._run(schedules.run_now(self._holder(name), name, now))

    def get(self, name: str) -> Schedule:
        """Return a schedule.

        ``name`` is its name. Raises `TaskNotFoundError` if there is none.
        """
        return self._run(schedules.get(self._holder(name), name))

    def list(self) -> PartialList[Schedule]:
        """Return all schedules, by name."""
        return self._read_all_shards(list_all)

    def fire_due(self, limit: int = 100, *, now: float | None = None) -> Sequence[Fired]:
        """Push the tasks that are due. Each run time is fired once, also if several processes call this. Workers call
        it.

        ``limit`` is the largest number of firings, at least 1; 100 by default. Returns the firings, and the schedules
        that could not fire.
        """
        return self._run(fire_due(self._shards, limit, now))

    def next_due(self, after: float | None = None) -> float | None:
        """Return when the next schedule is due, as Unix time; None if none is.

        ``after`` is the Unix time after which it is due; by default the server's time.
        """
        return self._run(next_due(self._shards, after))


SCHEDULE_OPTIONS = ("cron", "every", "timezone", "start", "missed", "grace", "expires", "enabled", "source", "declared")


def check_options(options: dict[str, Any]) -> dict[str, Any]:
    for name in options:
        if name not in SCHEDULE_OPTIONS:
            hint = suggestion(name, SCHEDULE_OPTIONS)
            raise TaskValidationError(f"schedules.add() has no option {short(name)}; {hint}")
    return options


def places(shards: Shards, name: str, task: Task | Template) -> Operation[tuple[Commands, Sequence[Commands]]]:
    """Where a schedule is to be, and from which shards it is to be removed, as its task had another user before."""
    there = shards.of(str(schedules.template_of(task)["user_id"]))
    if len(shards) == 1:
        return there, ()
    holders = yield from _holders(shards, name)
    if not holders and (yield from schedules.count(shards)) >= schedules.MAX_SCHEDULES:
        raise schedules.too_many(shards.home)
    return there, [shard for shard in holders if shard is not there]


def add(
    place: tuple[Commands, Sequence[Commands]],
    name: str,
    task: Task | Template,
    options: dict[str, Any],
    now: float | None,
) -> Operation[Schedule]:
    """On another shard than before when its task has another user: then the one of before is removed first."""
    there, others = place
    for shard in others:
        yield from schedules.remove(shard, name, now)
    return (yield from schedules.add(there, name, task, options, now))


def list_all(shards: Shards) -> Operation[PartialList[Schedule]]:
    found: list[Schedule] = []
    for shard in shards:
        found += yield from schedules.list_all(shard)
    return PartialList(sorted(found, key=lambda schedule: schedule.name), shards.missing)


def fire_due(shards: Shards, limit: int, now: float | None) -> Operation[list[Fired]]:
    check_integer(limit, "limit", 1)
    fired: list[Fired] = []
    for shard in shards:
        left = limit - sum(not each.is_refused for each in fired)
        if left > 0:
            fired += yield from schedules.fire_due(shard, left, now)
    return fired


def next_due(shards: Shards, after: float | None) -> Operation[float | None]:
    start = to_us((yield from server_time(moment(after, "after"))))
    found: list[float] = []
    for shard in shards:
        read = ("ZRANGEBYSCORE", shard.keys("schedules:due"), f"({start}", "+inf", "WITHSCORES", "LIMIT", 0, 1)
        (reply,) = yield Read([read])
        found += (score / 1_000_000 for _, score in parse_scores(reply))
    return min(found, default=None)


def holder(shards: Shards, name: str) -> Operation[Commands]:
    """The shard of a schedule; that of home when there is none of this name, and it says so."""
    return next(iter((yield from _holders(shards, name))), shards.home)


def _holders(shards: Shards, name: str) -> Operation[list[Commands]]:
    if len(shards) == 1:
        return [shards.home]
    check_id(name, "a schedule's name")
    living = tuple(shards)
    known = yield Read([("HEXISTS", shard.keys("schedules"), name) for shard in living])
    holders = [shard for shard, is_there in zip(living, known, strict=True) if is_there]
    if not holders:
        shards.check_present(f"the schedule {name!r} can't be looked up")
    return holders
