"""Writes the figures of a queue and of a user as lines for people, and finds the users with most ready tasks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from django.utils.translation import gettext_noop

from django_fairque.engine.inspection.pages import MAX_PAGE_SIZE, Sizes
from django_fairque.engine.schedules.declarations import display_version, have_equal_declarations
from django_fairque.engine.sharding.shards import describe_shards
from django_fairque.engine.statistics.queue_stats import have_other_lanes
from django_fairque.engine.users.history import add_up_periods
from django_fairque.engine.users.users import HOLD_REASONS

from .formatting import approximate, duration, number, pluralize, rate, share, table

if TYPE_CHECKING:
    from django_fairque.engine.acts.acts import TaskAct
    from django_fairque.engine.inspection.pages import WorkerRecord
    from django_fairque.engine.limits.limits import LimitStats
    from django_fairque.engine.model.limits import TaskLimit
    from django_fairque.engine.model.pauses import Pause
    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.engine.statistics.backlog import Trend
    from django_fairque.engine.statistics.queue_stats import Percentiles, QueueStats, ShardStats
    from django_fairque.engine.users.fairness import UserFairness
    from django_fairque.engine.users.history import UserHistory
    from django_fairque.engine.users.users import UserStats


def differing_declarations(queue: FairQueue) -> list[str]:
    """Return a sentence that names the versions if running workers declare different schedules, for example workers of
    two services.
    """
    running = queue.schedules.running_versions()
    if all(have_equal_declarations(running[0].version, other.version) for other in running):
        return []
    versions = (
        f"version {display_version(release.version)} ({pluralize(release.workers, 'worker')}"
        f"{', in force' if release.is_in_force else ''})"
        for release in running
    )
    return [f"running workers have declared different schedules: {'; '.join(versions)}"]


def reserved_slots(workers: Iterable[WorkerRecord], word: Callable[[str], str] = str) -> str:
    """Return the number of slots of these processes that tasks of lower lanes never use, such as ``urgent 1, normal
    2``; empty if there are none.
    """
    slots: Counter[str] = Counter()
    for worker in workers:
        for lane, count in re.findall(r"(urgent|normal)=([0-9]{1,6})", worker.info.get("reserve", "")):
            slots[lane] += int(count)
    return ", ".join(f"{word(lane)} {number(count)}" for lane, count in slots.items())


USERS_EXAMINED = 200
"""Number of users whose limits are considered in the estimate: users with old tasks, users with many tasks, and users
whose turn is next."""
RATE_MINUTES = 5
"""Number of whole minutes over which rates are calculated."""


@dataclass(frozen=True)
class TopUsers:
    """The users with most ready tasks, among ``looked_at`` examined users."""

    sizes: dict[str, Sizes]
    looked_at: int
    users: int


def top_users(queue: FairQueue, stats: QueueStats, count: int, most: int = MAX_PAGE_SIZE) -> TopUsers:
    """Return the ``count`` users with most ready tasks. At most ``most`` (1 to 1,000) users are examined: the busiest
    users of a sample first, then other users.
    """
    names = dict.fromkeys([*queue.busiest_users()[:count], *queue.busy_users(most)])
    sizes = queue.get_queue_sizes_batch(list(names)[:most])
    ranked = sorted(sizes.items(), key=lambda pair: (-pair[1].ready, -pair[1].total, pair[0]))
    return TopUsers(dict(ranked[:count]), len(sizes), max(stats.users, len(sizes)))


def queue_lines(stats: QueueStats) -> Iterator[str]:
    paused = f", PAUSED{pause_suffix(stats.pause)}" if stats.paused else ""
    held = stats.held_back_wait_seconds
    held_back = f" (held back by a pause or a limit: {duration(held)})" if held else ""
    yield (
        f"queue {stats.queue!r}{paused}: {pluralize(stats.users_ready, 'user')} ready of {number(stats.users)}, "
        f"{pluralize(stats.workers, 'worker')}, oldest wait {duration(stats.oldest_wait_seconds)}{held_back}"
    )
    if stats.missing_shards:
        yield f"! {missing_words(stats.missing_shards)}"
    yield ""
    yield _format_numbers("states", stats.states)
    yield _format_numbers("ready", stats.depth)
    yield _format_numbers("dead", stats.dead)
    if stats.waiting_at_limits:
        yield f"{'limits':8} {pluralize(stats.waiting_at_limits, 'queued task waits', 'queued tasks wait')} at a limit by key"
    yield _recent_rates(stats)
    if trend := trend_words(stats.trend):
        yield f"{'backlog':8} {trend}"
    yield ""
    yield from table(
        [
            ("last hour", "count", "p50", "p95", "p99"),
            _row("wait", stats.wait),
            *(_row(f"  {name}", figures) for name, figures in stats.wait_by_priority.items()),
            _row("run", stats.run),
            _row("release", stats.dependencies.resolution),
        ]
    )
    yield ""
    if have_other_lanes(stats.lanes):
        rows = [
            (lane, number(figures.ready), number(figures.running), number(figures.started), *_row("", figures.wait)[2:])
            for lane, figures in stats.lanes.items()
        ]
        yield from table([("lane", "ready", "running", "started", "wait p50", "p95", "p99"), *rows])
        yield ""
    sla, dependencies = stats.sla, stats.dependencies
    priorities = ", ".join(f"{number(count)} from {name}" for name, count in sla.promoted_from.items() if count)
    moved = f" ({priorities})" if priorities else ""
    yield (
        f"{'SLA':8} at risk {number(sla.at_risk)}  overdue {number(sla.overdue)}  started late "
        f"{number(sla.violated)}  moved up {number(sla.promoted)}{moved}"
    )
    if stats.states["queued"] and not stats.workers:
        yield f"{'':8} no worker is running, so start deadlines that have passed are not counted yet."
    missed = {name: counts for name, counts in sla.by_priority.items() if any(astuple(counts))}
    if missed:
        rows = [(f"  {name}", *map(number, astuple(counts))) for name, counts in missed.items()]
        yield from table([("", "at risk", "overdue", "started late"), *rows])
    yield (
        f"{'depends':8} deferred {number(dependencies.deferred)}  edges {number(dependencies.edges)}  released "
        f"{number(dependencies.resolved)}  to be notified {number(dependencies.resolving)}"
    )
    yield _format_numbers("totals", {name: value for name, value in stats.totals.items() if ":" not in name})


def limit_values(limit: LimitStats | TaskLimit) -> str:
    """Format the values of a limit by key: ``4 at once, 100/s (burst 20)``; ``-`` if there is no limit."""
    parts = [f"{number(limit.at_once)} at once"] if limit.at_once is not None else []
    if limit.rate is not None:
        parts.append(limit.rate + (f" (burst {number(limit.burst)})" if limit.burst and limit.burst > 1 else ""))
    return ", ".join(parts) or "-"


def pause_suffix(pause: Pause | None) -> str:
    """Format the end and the note of a pause: `` until 2030-12-31 18:00:00Z (its note)``; empty if the pause has
    neither.
    """
    if pause is None:
        return ""
    until = (
        "" if pause.until is None else f" until {datetime.fromtimestamp(pause.until, timezone.utc):%Y-%m-%d %H:%M:%SZ}"
    )
    return until + (f" ({pause.note})" if pause.note else "")


def paused_users(examined: Iterable[UserFairness]) -> list[UserFairness]:
    """Return the users with ready tasks that a pause of the user or of its organization holds back."""
    return [user for user in examined if user.ready and user.held_by in ("user_paused", "organization_paused")]


def refine_trend(stats: QueueStats, examined: Sequence[UserFairness]) -> tuple[Trend | None, int]:
    """Return the trend of the backlog, corrected in two ways. Tasks of paused users, which the figures include, are
    left out. The backlog ends no earlier than the last task of a user who may run only a few tasks at once.
    """
    trend, ready, are_paused = stats.trend, sum(stats.depth.values()), paused_users(examined)
    paused, ids = sum(user.ready for user in are_paused), {user.user_id for user in are_paused}
    if trend is None or trend.seconds_left is None:
        return trend, paused
    left = trend.seconds_left * max(0, ready - paused) / max(1, ready)
    limited = [user for user in examined if user.least_seconds > left and user.user_id not in ids]
    slowest = max(limited, key=lambda user: user.least_seconds, default=None)
    if slowest is None:
        return replace(trend, seconds_left=left), paused
    return replace(trend, seconds_left=slowest.least_seconds, limited_user=slowest.user_id), paused


def longest_wait(stats: QueueStats, examined: Sequence[UserFairness]) -> float:
    """Return the longest wait in seconds of the statistics and of these users. The statistics read the task that is checked
    next, and an older task whose SLA has passed may be checked later.
    """
    return max([stats.oldest_wait_seconds, *(user.wait_seconds for user in examined if user.waiting)])


def with_figures_of_users(queue: FairQueue, stats: QueueStats) -> QueueStats:
    """Return the figures with the corrected trend of `refine_trend` and the `longest_wait`."""
    examined = queue.fairness(USERS_EXAMINED).examined
    return replace(stats, trend=refine_trend(stats, examined)[0], oldest_wait_seconds=longest_wait(stats, examined))


def progress_words(act: TaskAct, gettext: Callable[[str], str] = gettext_noop) -> str:
    """Format how many tasks of an act are handled: ``312 of 3,028``, or ``312 of at least 10,000``."""
    is_exact = act.is_counted_whole or act.is_scanned
    text = gettext("%(done)s of %(total)s") if is_exact else gettext("%(done)s of at least %(total)s")
    return text % {"done": number(act.handled), "total": number(act.total)}


def trend_words(trend: Trend | None, gettext: Callable[[str], str] = gettext_noop) -> str:
    """Format the trend: ``done in about 4 min at 33 tasks/s`` or ``growing by 9 tasks/s``; empty if it is unknown. The
    text is English, unless ``gettext`` translates it. The rate is the speed at which the backlog shrinks. The time is
    calculated from the rate, unless the limit of a single user makes it longer.
    """
    if trend is None:
        return ""
    if trend.seconds_left is None:
        return gettext("growing by %(rate)s") % {"rate": _tasks(trend.growth, gettext)}
    facts = {
        "time": approximate(trend.seconds_left),
        "rate": _tasks(-trend.growth, gettext),
        "user": trend.limited_user,
    }
    if trend.limited_user is not None:
        return gettext("done in about %(time)s because of the limits of user %(user)s") % facts
    return gettext("done in about %(time)s at %(rate)s") % facts


def _tasks(per_second: float, gettext: Callable[[str], str]) -> str:
    """Format a rate of tasks: ``33`` -> ``33 tasks/s``."""
    number, _slash, unit = rate(per_second).partition(" /")
    return gettext("%(number)s tasks/%(unit)s") % {"number": number, "unit": unit}


def missing_words(shards: Sequence[int]) -> str:
    """Return a text that names the shards that can't be reached, and the consequence for the figures."""
    return f"{describe_shards(shards)} can't be reached: what lies there is missing here"


def shard_lines(shards: Sequence[ShardStats]) -> Iterator[str]:
    states = ("queued", "started", "scheduled", "deferred", "failed")
    rows: list[tuple[str, ...]] = [("shard", "node", "users ready", *states)]
    for shard in shards:
        figures = ["away", *("?" for _ in states)]
        if shard.is_up:
            figures = [number(shard.users_ready), *(number(shard.states[state]) for state in states)]
        rows.append((str(shard.shard), shard.node or "-", *figures))
    yield from table(rows)


def user_lines(user: UserStats) -> Iterator[str]:
    sizes = user.sizes
    state = ", PAUSED" if user.organization_paused else ", full" if user.organization_is_full else ""
    of_organization = f"organization {user.organization!a} of weight {user.organization_weight:g}{state}"
    limits = [
        f"plan {user.plan}" if user.plan else "",
        f"weight {user.weight:g}",
        of_organization if user.organization is not None else "",
        f"running {number(user.max_running)}" if user.max_running else "",
        f"backlog {number(user.max_backlog)}" if user.max_backlog else "",
        f"rate {user.rate}" if user.rate else "",
        f"SLA {duration(user.sla)}" if user.sla else "",
        f"PAUSED{pause_suffix(user.pause)}" if user.paused else "",
    ]
    yield f"user {user.user_id!a}: {', '.join(filter(None, limits))}"
    if user.explicit:
        yield f"{'own':8} set for this user, whatever its plan is: {', '.join(user.explicit)}"
    at_limits = {"at limits": sizes.limited} if sizes.limited else {}
    counted = {**at_limits, "scheduled": sizes.scheduled, "deferred": sizes.deferred, "running": sizes.running}
    yield _format_numbers("now", {**sizes.by_priority, **counted})
    if user.held_by and sizes.ready:
        yield f"{'held':8} ready tasks can't start: {HOLD_REASONS[user.held_by]}"
    yield _format_numbers("ended", {"started": user.started, "finished": user.finished, "dead": user.dead})
    started = max(1, user.started)
    yield (
        f"{'times':8} {duration(user.busy_seconds)} of worker time, {duration(user.waited_seconds / started)} waited and "
        f"{duration(user.busy_seconds / started)} run on the average"
    )
    recent = user.last_hour
    waits = f", half of them within {duration(recent.wait.p50)} and 95 % within {duration(recent.wait.p95)}"
    yield (
        f"{'recent':8} {duration(recent.busy_seconds)} of worker time, {number(recent.wait.count)} started"
        f"{waits if recent.wait.count else ''} (last hour)"
    )


def history_lines(history: UserHistory) -> Iterator[str]:
    """Yield lines with the figures of a user in the current clock hour, in the last 24 clock hours, and in the last 35
    days.
    """
    periods = {"this hour": history.hours[-1:], "24 hours": history.hours[-24:], "35 days": history.days}
    totals = {label: add_up_periods(some) for label, some in periods.items()}
    rows = [
        (
            label,
            *map(number, (total.finished, total.failed, total.dead)),
            share(total.sla_kept / (total.sla_kept + total.sla_missed)) if total.sla_kept + total.sla_missed else "-",
            *(duration(value) if total.wait.count else "-" for value in (total.wait.p50, total.wait.p95)),
        )
        for label, total in totals.items()
    ]
    yield from table([("period", "finished", "failed", "dead", "SLA kept", "wait p50", "wait p95"), *rows])


def top_lines(top: TopUsers) -> Iterator[str]:
    rows = [
        (ascii(user)[1:-1], number(size.ready), number(size.running), number(size.scheduled), number(size.deferred))
        for user, size in top.sizes.items()
    ]
    yield from table([("user", "ready", "running", "scheduled", "deferred"), *rows])
    if top.looked_at < top.users:
        yield f"of {pluralize(top.looked_at, 'user')} looked at; there are {number(top.users)}"


def _recent_rates(stats: QueueStats) -> str:
    minutes = stats.minutes[-1 - RATE_MINUTES : -1]
    finished, failed = sum(minute.finished for minute in minutes), sum(minute.failed for minute in minutes)
    ended = finished + failed
    return (
        f"{'recent':8} {rate(sum(minute.pushed for minute in minutes) / (60 * RATE_MINUTES))} pushed  "
        f"{rate(finished / (60 * RATE_MINUTES))} finished  {share(failed / ended if ended else 0)} of attempts failed "
        f"(last {RATE_MINUTES} minutes)"
    )


def _format_numbers(title: str, numbers: Mapping[str, int]) -> str:
    return f"{title:8} " + "  ".join(f"{name} {number(value)}" for name, value in numbers.items())


def _row(title: str, figures: Percentiles) -> tuple[str, ...]:
    return (title, number(figures.count), *(duration(seconds) for seconds in (figures.p50, figures.p95, figures.p99)))
