"""The live page: the tasks in the slots of all workers during the last minute, by user, and the users that are waiting
now.
"""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_fairque.admin.charts import draw_strip, printable
from django_fairque.admin.pages.base import AdminPage, lane_rows
from django_fairque.admin.pages.users import wait_text
from django_fairque.engine.inspection.worker_activity import ACTIVITY_SECONDS, ActivityReport, decode_activity
from django_fairque.engine.model.ids import MAX_ID_BYTES
from django_fairque.engine.queue.lockstep import read_in_lockstep
from django_fairque.engine.statistics import queue_stats
from django_fairque.engine.users import fairness as user_fairness
from django_fairque.monitoring.first_come import MAX_REPLAYED_SLOTS, first_come_waits
from django_fairque.monitoring.formatting import approximate, duration, share
from django_fairque.monitoring.wait_history import WaitHistory, wait_history

if TYPE_CHECKING:
    from django_fairque.engine.inspection.pages import WorkerRecord
    from django_fairque.engine.model.lanes import Lane
    from django_fairque.engine.scripting.operations import Operation
    from django_fairque.engine.sharding.shards import Shards
    from django_fairque.engine.statistics.queue_stats import LaneStats
    from django_fairque.engine.users.fairness import UserFairness
    from django_fairque.monitoring.first_come import FirstComeComparison

LIVE_REFRESH_SECONDS = 2
SLOTS_DRAWN = 48
LANE_MINUTES = 5
"""Number of minutes for the waits by lane, which are calculated from attempts that ended in this time."""
USERS_COLORED = 8
"""Number of users with a color of their own, for which admin.css has classes. All other users share one color."""
USERS_LISTED = 15
LIVE_USERS_EXAMINED = 40
"""Number of users whose records are read to find users that wait."""
OTHERS_CLASS = "fq-user-others"
IDLE_CLASS = "fq-live-idle"
"""CSS class of an idle slot, and of half hours in which a user waited for less than the first of `HEAT_SECONDS`."""
HEAT_SECONDS = (1, 10, 60, 600, 3600)
"""Minimum wait in seconds for each color of the heat map. admin.css has a class for each color."""
HEAT_ROWS = 15
"""Maximum number of users with a row in the heat map."""
USERS_PER_FIGURE = 3
"""Maximum number of users that the table below the heat map names for each half hour."""
DELAYED_USERS_NAMED = 3
"""Maximum number of users in the sentence about users that waited longer than with first come, first served."""


@dataclass(frozen=True)
class SlotMinute:
    """One slot during the minute that the chart shows."""

    worker: str
    number: int
    first: int
    """Seconds from the chart's left edge to the first second that the process reported."""
    users: Sequence[str | None]
    """The user whose task ran in each second: empty while the slot was idle, None if the report does not name the
    user."""

    @property
    def busy_seconds(self) -> int:
        return len(self.users) - self.users.count("")

    @property
    def utilization(self) -> str:
        return share(self.busy_seconds / len(self.users)) if self.users else ""

    def draw(self, colors: Mapping[str, str]) -> list[tuple[str, str]]:
        """Return the strip of the slot, in the colors of its users."""
        classes = {"": IDLE_CLASS, **colors}
        return draw_strip(
            [OTHERS_CLASS if user is None else classes.get(user, OTHERS_CLASS) for user in self.users], self.first
        )


@dataclass(frozen=True)
class LiveUser:
    """A user that ran tasks in the last minute, or waits. A user without a CSS class does not appear in the chart."""

    user_id: str
    seconds: int
    """Number of seconds in the last minute in which the user's tasks used the slots that are drawn."""
    part: str
    """The user's share of the time in which the slots that are drawn were busy."""
    css_class: str
    fairness: UserFairness | None
    """The user's fairness figures; None if the user no longer has tasks and settings."""

    @property
    def waits(self) -> str:
        """The reason why the user's ready tasks have not started; empty if no task is ready."""
        fair = self.fairness
        return wait_text(fair.held_by, only_bulk=not fair.waiting) if fair is not None and fair.ready else ""


class LivePage(AdminPage):
    """The page that shows the slots, refreshed every two seconds.

    Processes send their reports with heartbeats, so the right edge of the chart is as old as the latest heartbeat.
    """

    name = "live"
    title = gettext_lazy("Live")
    permission = "view_user"

    def template_context(self) -> dict[str, Any]:
        records = self.queue.workers()
        reports, left_out = reported_slots(records)
        end = max((math.ceil(report.at) for _worker, report in reports), default=0)
        slots = slot_minutes(reports, end)
        seconds = Counter(user for slot in slots for user in slot.users if user != "")
        colors = user_classes(seconds)
        busy, total = sum(slot.busy_seconds for slot in slots), sum(len(slot.users) for slot in slots)
        comparison = first_come_waits(self.queue, min(MAX_REPLAYED_SLOTS, max(1, sum(map(count_slots, records)))))
        users, lanes = self._users_and_lanes(seconds, busy, colors)
        return {
            "slots": [(slot, slot.draw(colors)) for slot in slots],
            "slots_left_out": left_out,
            "has_workers": bool(records),
            "end": end,
            "window": ACTIVITY_SECONDS,
            "users": users,
            "others": sum(count for user, count in seconds.items() if user is None or user not in colors),
            "others_class": OTHERS_CLASS,
            "utilization": share(busy / total) if total else "",
            "refresh": LIVE_REFRESH_SECONDS,
            "lanes": lane_rows(lanes, {lane: figures.wait for lane, figures in lanes.items()}),
            "comparison": comparison,
            "comparison_text": comparison_text(comparison),
            "compared": comparison.users[:USERS_LISTED],
            **draw_heat_map(wait_history(self.queue)),
        }

    def _users_and_lanes(
        self, seconds: Counter[str | None], busy: int, colors: Mapping[str, str]
    ) -> tuple[list[LiveUser], dict[Lane, LaneStats]]:
        """Return users with a color, then users whose ready tasks have waited longest. The figures of the lanes are
        read in the same round trips.
        """
        # a damaged record may name a user with an impossible id
        drawn = [name for name in colors if 0 < len(name.encode()) <= MAX_ID_BYTES]
        reads: list[Callable[[Shards], Operation[Any]]] = [
            lambda shards: user_fairness.fairness(shards, LIVE_USERS_EXAMINED, drawn),
            lambda shards: queue_stats.lanes(shards, LANE_MINUTES),
        ]
        fairness, lanes = read_in_lockstep([(self.queue, read) for read in reads])
        examined = fairness.examined
        known = {user.user_id: user for user in examined}
        names = [
            *sorted(drawn, key=lambda name: (-seconds[name], name)),
            *(user.user_id for user in examined if user.ready),
        ]
        users = [
            LiveUser(
                name,
                seconds[name],
                share(seconds[name] / busy) if busy else "",
                colors.get(name, OTHERS_CLASS if seconds[name] else ""),
                known.get(name),
            )
            for name in list(dict.fromkeys(names))[:USERS_LISTED]
        ]
        return users, lanes


def comparison_text(comparison: FirstComeComparison) -> str:
    """Return a sentence about the time that fair scheduling has saved and the users that it has delayed; empty if no
    user's waits would have been different.
    """
    parts = []
    if helped := comparison.helped:
        text = ngettext(
            "fair turns saved %(count)s user about %(time)s",
            "fair turns saved %(count)s users about %(time)s altogether",
            len(helped),
        )
        parts.append(text % {"count": f"{len(helped):,}", "time": approximate(comparison.saved_seconds)})
    delayed = comparison.delayed
    for user in delayed[:DELAYED_USERS_NAMED]:
        facts = {"user": printable(user.user_id), "time": approximate(-user.saved)}
        parts.append(_("%(user)s was delayed by about %(time)s") % facts)
    more = len(delayed) - DELAYED_USERS_NAMED
    if more > 0:
        text = ngettext("%(count)s more user was delayed", "%(count)s more users were delayed", more)
        parts.append(text % {"count": f"{more:,}"})
    whole = _("Compared with first come, first served: %(parts)s.")
    return whole % {"parts": "; ".join(parts)} if parts else ""


def count_slots(record: WorkerRecord) -> int:
    """Return the number of tasks that a worker can run at once; 0 if the worker's record lacks it."""
    text = record.info.get("concurrency", "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 7 else 0


def reported_slots(records: Iterable[WorkerRecord]) -> tuple[list[tuple[str, ActivityReport]], int]:
    """Return the workers whose slots are drawn, with their reports, and the number of slots that are left out."""
    found: list[tuple[str, ActivityReport]] = []
    drawn = left_out = 0
    for record in records:
        slots = count_slots(record)
        report = decode_activity(record) if drawn < SLOTS_DRAWN else None
        if report is not None and report.at > record.seen_at - ACTIVITY_SECONDS:
            shown = ActivityReport(report.at, report.slots[: SLOTS_DRAWN - drawn])
            found.append((record.worker, shown))
            drawn += len(shown.slots)
            slots -= len(shown.slots)
        left_out += max(0, slots)
    return found, left_out


def slot_minutes(reports: Iterable[tuple[str, ActivityReport]], end: int) -> list[SlotMinute]:
    """Return all slots in the reports for the minute before ``end``, which is the time of the latest report."""
    found = []
    for worker, report in reports:
        age = end - math.ceil(report.at)
        for number, slot in enumerate(report.slots, 1):
            users = slot.users[max(0, len(slot.users) + age - ACTIVITY_SECONDS) :]
            found.append(SlotMinute(worker, number, ACTIVITY_SECONDS - age - len(users), users))
    return found


def user_classes(seconds: Mapping[str | None, int]) -> dict[str, str]:
    """Return the CSS class of each user that has a color.

    The color is calculated from a hash of the user's id, so a user has the same color in each visit. If two users would
    have the same color, the user with the larger hash gets the next free color.
    """
    named = sorted((user for user in seconds if user is not None), key=lambda user: (-seconds[user], user))
    hashes = {user: zlib.crc32(user.encode("utf-8", "surrogatepass")) for user in named[:USERS_COLORED]}
    free, found = list(range(USERS_COLORED)), dict[str, str]()
    for user, number in sorted(hashes.items(), key=lambda item: (item[1], item[0])):
        index = min(free, key=lambda color: (color - number) % USERS_COLORED)
        free.remove(index)
        found[user] = f"fq-user-{index + 1}"
    return found


def draw_heat_map(history: WaitHistory) -> dict[str, Any]:
    """Return the variables of ``heat_map.html``: a row for each user with the longest waits, and a column for each half
    hour.

    ``heat_rows`` is empty if nobody waited. The first row, which names no user, is the median of all users who waited.
    """
    users = history.users[:HEAT_ROWS]
    rows = [("", history.medians), *((user.user_id, user.waits) for user in users)] if users else []
    return {
        "heat_rows": [
            (user_id, max(wait or 0 for wait in waits), draw_strip(list(map(_heat_class, waits))))
            for user_id, waits in rows
        ],
        "heat_width": len(history.begins),
        "heat_begin": history.begins[0],
        "heat_levels": [(_heat_class(seconds), duration(seconds)) for seconds in HEAT_SECONDS],
        "heat_figures": _heat_figures(history),
        "heat_left_out": max(0, len(history.users) - HEAT_ROWS),
    }


def _heat_class(wait: int | None) -> str:
    """Return the CSS class for a wait; empty for a half hour without a record."""
    if wait is None:
        return ""
    level = sum(wait >= seconds for seconds in HEAT_SECONDS)
    return f"fq-heat-{level}" if level else IDLE_CLASS


def _heat_figures(history: WaitHistory) -> list[tuple[int, int, list[tuple[str, int]]]]:
    """Return the half hours in which users waited, the latest first: the start, the median wait, and the longest waits
    by user.
    """
    figures = []
    for index, (begin, middle) in enumerate(zip(history.begins, history.medians, strict=True)):
        waited = [(user.user_id, wait) for user in history.users if (wait := user.waits[index])]
        if waited:
            longest = sorted(waited, key=lambda item: -item[1])[:USERS_PER_FIGURE]
            figures.append((begin, middle or 0, longest))
    return figures[::-1]
