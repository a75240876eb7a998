"""`Schedules` is ``queue.schedules``: recurring work of one queue."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from django_fairque.engine.schedules import declarations, forecast, schedule_ops

if TYPE_CHECKING:
    from django_fairque.engine.inspection.pages import PartialList
    from django_fairque.engine.model.pauses import PauseEnd
    from django_fairque.engine.model.task import Task
    from django_fairque.engine.schedules.forecast import Forecast
    from django_fairque.engine.schedules.schedule_ops import Fired, Schedule, Template
    from django_fairque.engine.scripting.commands import Commands
    from django_fairque.engine.scripting.operations import Driver
    from django_fairque.engine.sharding.shards import AllShardsReader, Shards


class Schedules:
    """The schedules of one queue, returned by ``queue.schedules``. Most methods take ``now``, as the methods of the
    queue do.

    Methods raise `ShardsAwayError` if a schedule can't be looked up because some shards can't be reached.
    """

    def __init__(self, shards: Shards, run: Driver, read_all_shards: AllShardsReader) -> None:
        self._shards, self._run, self._read_all_shards = shards, run, read_all_shards

    def _holder(self, name: str) -> Commands:
        return self._read_all_shards(lambda shards: schedule_ops.holder(shards, name))

    def add(self, name: str, *, task: Task | Template, now: float | None = None, **options: Any) -> Schedule:
        """Add a schedule, or change the schedule of this name. Unless its timing changes, its next run time stays.

        ``name`` is a text of at most 200 characters. ``task`` is pushed at each run time: a call that was not sent
        (``my_task.s(1)``), a task that needs no arguments (``my_task``), or a `Task`. Its ``unique_for`` and
        ``debounce`` are not used; a task with a delay, a moment at which it expires or dependencies is refused. These
        are the ``options``; give ``cron`` or ``every``:

        - ``cron``: five fields, minute hour day-of-month month day-of-week.
        - ``every``: seconds (or a timedelta) between two run times, at least 1.
        - ``start``: when ``every`` begins to count; now by default.
        - ``timezone``: the zone of ``cron``; UTC by default.
        - ``missed``: what happens to run times that could not be fired for more than ``catch_up`` seconds (60 by
          default): ``"skip"`` them (the default), fire ``"one"``, the last, or ``"all"``.
        - ``overlap``: what happens to a run if the task of the run before has not ended: ``"allow"`` enqueues it too
          (the default), ``"skip"`` leaves it out, ``"queue"`` lets it wait until that task ends, whatever its end; if a
          run waits already, the new run is left out.
        - ``jitter``: seconds by which the task of a run starts later at most, none by default: a part of them that is
          the same for each run time, and less than the time until the next run.
        - ``expires``: seconds from a run time (and its jitter) until its task is a dead letter if it has not started;
          by default that of the call.
        - ``enabled``: False to add it paused; True by default. ``pause_note`` and ``pause_until`` (a Unix time) are
          the note and the end of a pause, as `pause` writes them.
        - ``source``: where it is declared: code (the default), settings, command or admin.
        - ``declared``: for a schedule from settings, its declaration.

        Returns the schedule. Raises `TaskValidationError` if it can't be understood, has an unknown option, would
        never fire, or is one of more than 1000; nothing is changed then.
        """
        checked = schedule_ops.check_options(options)
        place = self._read_all_shards(lambda shards: schedule_ops.places(shards, name, task))
        steps = schedule_ops.add(place, name, task, checked, now)
        return self._run(schedule_ops.record_change("add", place[0], name, steps, now))

    def remove(self, name: str, *, now: float | None = None) -> bool:
        """Remove a schedule. Tasks that it has pushed stay.

        ``name`` is its name. Returns whether there was one.
        """
        holder = self._holder(name)
        return self._run(
            schedule_ops.record_change("remove", holder, name, schedule_ops.remove(holder, name, now), now)
        )

    def pause(self, name: str, *, note: str = "", until: PauseEnd = None, now: float | None = None) -> None:
        """Pause a schedule: it stays, and pushes nothing. Run times during the pause do not count as missed.

        ``name`` is its name. ``note`` is a text of at most 200 characters that is shown with the pause; empty by
        default. ``until`` is the moment at which the pause ends by itself: a Unix time, an aware datetime, or a
        timedelta from now, by the server's clock. None, the default, is for no end. A later pause replaces the note and
        the end. Raises `TaskNotFoundError` if there is no such schedule, and `TaskValidationError` if the note or the
        end is invalid.
        """
        self._run(schedule_ops.pause(self._holder(name), name, note, until, now))

    def resume(self, name: str, *, now: float | None = None) -> None:
        """End the pause of a schedule. Run times during the pause do not count as missed.

        ``name`` is its name. Raises `TaskNotFoundError` if there is none.
        """
        self._run(schedule_ops.resume(self._holder(name), name, now))

    def sign(self, name: str, *, now: float | None = None) -> None:
        """Sign the task that a schedule pushes, as it is stored now, with this process's key. Check the task first,
        with `get`.

        ``name`` is its name. Raises `TaskNotFoundError` if there is none.
        """
        self._run(schedule_ops.sign(self._holder(name), name, now))

    def run_now(self, name: str, *, now: float | None = None) -> str:
        """Push the task of a schedule at once, in addition to its run times.

        ``name`` is its name. Returns the task's id. Raises `TaskNotFoundError` if there is none, and what
        `FairQueue.push` raises.
        """
        return self._run(schedule_ops.run_now(self._holder(name), name, now))

    def get(self, name: str) -> Schedule:
        """Return a schedule.

        ``name`` is its name. Raises `TaskNotFoundError` if there is none.
        """
        return self._run(schedule_ops.get(self._holder(name), name))

    def list(self) -> PartialList[Schedule]:
        """Return all schedules, by name."""
        return self._read_all_shards(schedule_ops.list_all)

    def upcoming(self, hours: int = 24, *, now: float | None = None) -> Forecast:
        """Return the runs that are expected in the next hours, how long they take, and which run at the same time.

        ``hours`` is how far to look, from 1 to 48; 24 by default. Returns the `Forecast`. Nothing is changed, and at
        most seven requests are sent. Raises `TaskValidationError` for other hours.
        """
        return self._read_all_shards(lambda shards: forecast.forecast(shards, hours, now))

    def report_version(
        self,
        version: str,
        worker: str = "",
        *,
        action: declarations.VersionAction = "start",
        now: float | None = None,
    ) -> declarations.DeclaredVersion:
        """Report that a worker with a version of the declared schedules starts (the default), runs ("renew") or stops
        ("leave"), or make that version count ("adopt"). Workers call it.

        ``version`` is the result of `version_name`. ``worker`` is the worker's id, which counts as running for 30
        seconds; empty, the default, if there is none. ``action`` is one of the four. Returns the version that counts
        now.
        """
        return self._run(declarations.report_version(self._shards, action, version, worker, now))

    def declare(
        self,
        declared: Mapping[str, declarations.DeclaredSchedule],
        counting: declarations.DeclaredVersion,
        *,
        keep: Container[str] = (),
        now: float | None = None,
    ) -> bool:
        """Make the stored schedules agree with these declarations: add, change and remove schedules. A schedule that was added in
        another way stays. Workers call it.

        ``declared`` are the declarations by name. ``counting`` is what `report_version` returned for their version.
        ``keep`` contains names that are not removed; none by default. Returns False if a newer version counts
        meanwhile: nothing more was changed then. Raises `TaskValidationError` as `add` does.
        """
        return self._read_all_shards(lambda shards: declarations.declare(shards, declared, counting, keep, now))

    def running_versions(self, *, now: float | None = None) -> Sequence[declarations.RunningVersion]:
        """Return the versions of declared schedules that running workers have."""
        return self._run(declarations.running_versions(self._shards, now))

    def fire_due(self, limit: int = 100, *, now: float | None = None) -> Sequence[Fired]:
        """Push the tasks that are due. Each run time is fired once, also if several processes call this. Workers call
        it.

        ``limit`` is the largest number of firings, at least 1; 100 by default. Returns the firings, and the schedules
        that could not fire.
        """
        return self._run(schedule_ops.fire_due(self._shards, limit, now))

    def next_due(self, after: float | None = None) -> float | None:
        """Return when the next schedule is due, as Unix time; None if none is.

        ``after`` is the Unix time after which it is due; by default the server's time.
        """
        return self._run(schedule_ops.next_due(self._shards, after))
