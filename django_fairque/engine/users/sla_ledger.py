"""``queue.sla_ledger()``: kept and missed SLAs by user, lane and task name, with causes, and waiting tasks at risk.

The server counts a task once, when its first attempt ends (``lua/lib/sla.lua`` and ``lua/lib/task_names.lua``).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from django_fairque.engine.inspection.task_lookup import server_time
from django_fairque.engine.model.durations import check_integer, number, to_us
from django_fairque.engine.model.lanes import Lane, default_sla, read_lane, read_priority
from django_fairque.engine.scripting.commands import NEVER_MICROSECONDS
from django_fairque.engine.scripting.operations import Operation, Read, read_each, read_sound, read_together
from django_fairque.engine.scripting.task_fields import read_task_fields
from django_fairque.engine.statistics.queue_stats import HOUR_MICROSECONDS
from django_fairque.engine.statistics.task_names import MAX_HOURS, TOTALS_KEY
from django_fairque.engine.users.history import sums

if TYPE_CHECKING:
    from django_fairque.engine.scripting.commands import Commands
    from django_fairque.engine.sharding.shards import Shards

LateCause = Literal[
    "queue_paused",
    "user_paused",
    "organization_paused",
    "no_worker",
    "throttled",
    "limit_full",
    "capped",
    "organization_capped",
    "behind_own",
    "behind_users",
]
LATE_CAUSES: tuple[LateCause, ...] = get_args(LateCause)
LATE_KEY = "stats:late"
MAX_SLA_USERS = 50
"""The largest number of users in a ledger."""
MAX_WAITING, MAX_OTHERS = 100, 30
"""The largest numbers of tasks of a shard that are read: first of tasks whose check is due, of late tasks, and of tasks
whose check comes soon; second of tasks whose check comes later. From longer lists, a sample of all parts is read.
"""
_WINDOWS = 10
_LANE_OF: dict[bytes, Lane] = {b"u": "urgent", b"n": "normal", b"b": "bulk"}
_LATE = re.compile(rb"(\w+):([unb]):(\d+):(.*)", re.DOTALL)
_KEPT = re.compile(rb"\w+:\d+([unb]):(.*)", re.DOTALL)


@dataclass(frozen=True)
class SlaFigures:
    """The SLAs of the user, lane or task name ``name``. The empty task name stands for all names beyond the first 100.

    A task counts once: ``kept`` tasks started within their SLA, ``missed`` tasks did not. ``causes`` has the number of
    missed tasks by cause. ``at_risk`` is the number of waiting tasks with a near deadline, ``late`` the number of
    waiting tasks after their deadline, and ``late_causes`` contains the numbers of late tasks by cause, as far as it is
    known.
    """

    name: str
    kept: int = 0
    missed: int = 0
    at_risk: int = 0
    late: int = 0
    causes: Mapping[LateCause, int] = field(default_factory=dict)
    late_causes: Mapping[LateCause, int] = field(default_factory=dict)

    @property
    def all_causes(self) -> Mapping[LateCause, int]:
        """The number of missed tasks and of late waiting tasks by cause."""
        return Counter(self.causes) + Counter(self.late_causes)

    @property
    def kept_share(self) -> float | None:
        """The part of the tasks that kept their SLA, from 0 to 1; None without tasks."""
        return self.kept / (self.kept + self.missed) if self.kept + self.missed else None

    @property
    def cause(self) -> LateCause | None:
        """The cause of most missed and late tasks; None if no cause is known."""
        causes = self.all_causes
        return max(causes, key=lambda cause: (causes[cause], cause), default=None)


@dataclass(frozen=True)
class SlaLedger:
    """The SLAs of the last ``hours`` by the clock, from ``begin`` (Unix time) on. The latest hour has not ended.

    ``lanes``, ``users`` and ``tasks`` (by task name) are sorted by the number of missed tasks, the largest first.
    ``users`` are at most 50; ``unlisted`` missed tasks are of other users. ``is_estimate`` is whether ``at_risk`` and
    ``late`` are estimates from a sample. The figures of ``missing_shards`` are left out.
    """

    hours: int
    begin: int
    lanes: list[SlaFigures]
    users: list[SlaFigures]
    tasks: list[SlaFigures]
    unlisted: int
    is_estimate: bool
    missing_shards: tuple[int, ...] = ()


class _Waiting(NamedTuple):
    """The tasks of a shard that are at risk or late: kinds, user, lane, name and the number of tasks that each stands for.
    The kinds of a late task are ``late``, and its cause after ``late:``."""

    tasks: list[tuple[tuple[str, ...], str, Lane, str, float]]
    is_estimate: bool
    users: list[str]
    """Users with tasks or settings, and then users that had tasks lately."""


class _Sums:
    """Sums by user, lane and task name."""

    def __init__(self) -> None:
        self.by_kind: dict[tuple[str, str], Counter[str]] = {}

    def add(self, result: str, user: str, lane: Lane, name: str, tasks: float) -> None:
        for key in (("user", user), ("lane", lane), ("task", name)):
            self.by_kind.setdefault(key, Counter())[result] += tasks  # type: ignore[assignment]  # an estimate

    def figures(self, kind: str, names: Iterable[str] | None = None) -> list[SlaFigures]:
        """Return the figures of these names, or of all names; most missed tasks first. Names without figures are left
        out.
        """
        wanted = {name for known, name in self.by_kind if known == kind} if names is None else set(names)
        rows = [_make_figures(name, self.by_kind.get((kind, name), Counter())) for name in wanted]
        shown = [row for row in rows if row.kept or row.missed or row.at_risk or row.late]
        return sorted(shown, key=lambda row: (-row.missed, -row.late, -row.at_risk, -row.kept, row.name))


def _make_figures(name: str, counts: Counter[str]) -> SlaFigures:
    kept, missed, at_risk, late = (round(counts[result]) for result in ("kept", "missed", "at_risk", "late"))
    causes = {cause: counts[cause] for cause in LATE_CAUSES if counts[cause]}
    late_causes = {cause: round(counts[f"late:{cause}"]) for cause in LATE_CAUSES if counts[f"late:{cause}"]}
    return SlaFigures(name, kept, missed, at_risk, late, causes, late_causes)


def sla_ledger(shards: Shards, hours: int, now: float | None) -> Operation[SlaLedger]:
    """Read the ledger of the last ``hours``, in at most eight round trips."""
    check_integer(hours, "hours", 1, MAX_HOURS)
    moment = to_us((yield from server_time(now)))
    last, present, found = moment // HOUR_MICROSECONDS, list(shards), _Sums()
    period = range(last - hours + 1, last + 1)
    keys = [f"{key}:{hour}" for key in (LATE_KEY, TOTALS_KEY) for hour in period]
    for records in (
        yield from read_each([[("HGETALL", shard.keys(key)) for key in keys] for shard in present], only_sound=True)
    ):
        _add_ended(found, records)
    waiting = yield from read_together([_read_waiting(shard, moment) for shard in present])
    for kinds, user, lane, name, tasks in (task for part in waiting for task in part.tasks):
        for kind in kinds:
            found.add(kind, user, lane, name, tasks)
    names = [row.name for row in found.figures("user") if row.name]
    names = list(dict.fromkeys([*names, *(user for part in waiting for user in part.users)]))[:MAX_SLA_USERS]
    by_shard = [[name for name in names if shards.get_shard(name) is shard] for shard in present]
    reads = [
        sums(shard.keys, users, period[0], last, is_day=False) for shard, users in zip(present, by_shard, strict=True)
    ]
    for users, periods in zip(by_shard, (yield from read_together(reads)), strict=True):
        for user, (figures, _record) in zip(users, periods, strict=True):
            counts = found.by_kind.setdefault(("user", user), Counter())
            counts["kept"], counts["missed"] = figures.sla_kept, figures.sla_missed
    users_shown, lanes = found.figures("user", names), found.figures("lane")
    return SlaLedger(
        hours,
        period[0] * 3600,
        lanes,
        users_shown,
        found.figures("task"),
        max(0, sum(row.missed for row in lanes) - sum(row.missed for row in users_shown)),
        any(part.is_estimate for part in waiting),
        tuple(shards.missing),
    )


def _add_ended(found: _Sums, records: Sequence[Mapping[bytes, bytes]]) -> None:
    for key, count in (pair for record in records for pair in record.items()):
        if match := _KEPT.fullmatch(key):
            found.add("kept", "", _LANE_OF[match[1]], match[2].decode("utf-8", "replace"), int(count))
        elif match := _LATE.fullmatch(key):
            size = int(match[3])
            user, name = (text.decode("utf-8", "replace") for text in (match[4][:size], match[4][size:]))
            result = match[1].decode()
            for counted in ("kept",) if result == "kept" else ("missed", result):
                found.add(counted, user, _LANE_OF[match[2]], name, int(count))


def _read_waiting(commands: Commands, moment: int) -> Operation[_Waiting]:
    queued, warned = commands.keys.state("queued"), moment + to_us(commands.config.sla_at_risk_seconds)
    size, due, soon, late, users = yield Read(
        [
            ("ZCARD", queued),
            ("ZCOUNT", queued, "-inf", moment),
            ("ZCOUNT", queued, f"({moment}", warned),
            ("ZCOUNT", queued, NEVER_MICROSECONDS, "+inf"),
            ("ZREVRANGE", commands.keys("users"), 0, MAX_SLA_USERS - 1),
        ]
    )
    parts = [
        *((0, due, MAX_WAITING), (size - late, late, MAX_WAITING)),
        *((due, soon, MAX_WAITING), (due + soon, size - due - soon - late, MAX_OTHERS)),
    ]
    reads = [[("ZRANGE", queued, *window) for window in _windows(*part)] for part in parts]
    found = [
        [task_id.decode() for page in pages for task_id in page]
        for pages in (yield from read_each(reads, only_sound=True))
    ]
    weights = {
        task_id: max(1.0, count / len(ids)) if count > most else 1.0
        for (_, count, most), ids in zip(parts, found, strict=True)
        for task_id in ids
    }
    # Tasks with a later next check are at risk or late if they have a field `warn` (lua/lib/deadlines.lua). A late task
    # with a later expiry is among the last part.
    later = [*found[2], *found[3]]
    has_warn = yield from read_sound([("HGET", commands.keys.task(task_id), "warn") for task_id in later])
    ids = list(dict.fromkeys([*found[0], *found[1], *compress(later, has_warn)]))
    fields = ("user", "name", "priority", "sla", "ready", "created", "again", "returned", "died", "cause")
    records = yield from read_task_fields(commands.keys, ids, *fields)
    tasks = []
    for record, task_id in zip(records, ids, strict=True):
        if record[0] is not None and (kind := _judge(commands, record[:-1], moment)):
            cause = record[-1] if kind == "late" else None
            kinds: tuple[str, ...] = (kind, f"late:{cause.decode()}") if cause else (kind,)
            user, name = ((text or b"").decode("utf-8", "replace") for text in record[:2])
            tasks.append((kinds, user, read_lane(record[2] or b"3"), name, weights[task_id]))
    return _Waiting(tasks, any(task[-1] > 1 for task in tasks), [user.decode() for user in users])


def _windows(first: int, count: int, most: int) -> Iterable[tuple[int, int]]:
    """Return the first and last ranks of parts of a list with at most ``most`` entries together, or of the whole list."""
    if count <= most:
        return [(first, first + count - 1)] if count > 0 else []
    size = most // _WINDOWS
    begins = (first + part * (count - size) // (_WINDOWS - 1) for part in range(_WINDOWS))
    return ((begin, begin + size - 1) for begin in begins)


def _judge(commands: Commands, record: Sequence[Any], moment: int) -> str:
    """Return "at_risk" or "late"; empty for a task that is neither, or that does not count (any more)."""
    _user, _name, priority, sla, ready, created, again, returned, died = record
    within = number(sla) or to_us(
        default_sla(read_lane(priority or b"3"), commands.config.sla[read_priority(priority or b"3").name]) or 0
    )
    if again or returned or number(died) or not within:
        return ""
    deadline = number(ready or created) + within
    near = min(to_us(commands.config.sla_at_risk_seconds), within / 2)
    return "late" if deadline <= moment else "at_risk" if deadline - near <= moment else ""
