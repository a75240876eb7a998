"""Who got how much of the workers, against what was fair; who asks for far more than the others, and how those fare."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_fairque.monitoring.formatting import duration, number, share

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_fairque.engine.users import UserStats

NOISY = 20
"""Waiting tasks below which nobody is noisy."""
TIMES_OTHERS = 10
"""How many times the others' median of waiting tasks are far above it."""
BEHIND, AHEAD = 0.9, 1.1
"""Parts of the fair share within which a share is fair."""


@dataclass(frozen=True)
class Row:
    """One user of the table: fractions of 1, figures as text."""

    stats: UserStats
    received: float
    fair: float
    is_noisy: bool

    @property
    def user_id(self) -> str:
        return self.stats.user_id

    @property
    def waiting(self) -> int:
        return waiting(self.stats)

    @property
    def received_text(self) -> str:
        return share(self.received)

    @property
    def fair_text(self) -> str:
        return share(self.fair)

    @property
    def received_percent(self) -> int:
        return round(self.received * 100)

    @property
    def fair_percent(self) -> int:
        return round(self.fair * 100)

    @property
    def worked_text(self) -> str:
        return duration(self.stats.busy_seconds)

    @property
    def wait_text(self) -> str:
        """The mean of its tasks' waits; a dash before any has started."""
        return duration(self.stats.waited_seconds / self.stats.started) if self.stats.started else "–"

    @property
    def limits(self) -> list[str]:
        """Its settings in words, those that are set."""
        stats = self.stats
        known = {
            _("at most %(value)s at once"): stats.max_running and number(stats.max_running),
            _("rate %(value)s"): stats.rate,
            _("backlog %(value)s"): stats.max_backlog and number(stats.max_backlog),
            _("starts within %(value)s"): stats.sla and duration(stats.sla),
        }
        return [text % {"value": value} for text, value in known.items() if value]

    @property
    def verdict(self) -> str:
        """What the two shares mean for this user."""
        stats = self.stats
        if stats.paused:
            return _("paused")
        if not self.waiting:
            return _("got all it asked for") if stats.started else _("has asked for nothing")
        if stats.max_running is not None and stats.sizes.running >= stats.max_running:
            return _("waits for its own running tasks")
        if self.received < BEHIND * self.fair:
            return _("less than its share so far")
        return _("more than its share: others left it") if self.received > AHEAD * self.fair else _("has its share")


def waiting(stats: UserStats) -> int:
    """What has not begun, for whatever reason."""
    return stats.sizes.total - stats.sizes.running


def rows(users: Sequence[UserStats]) -> list[Row]:
    """These users beside each other: their shares are of what all of them got, fair ones follow from their weights."""
    busy = sum(each.busy_seconds for each in users)
    weights = sum(each.weight for each in users)
    noisy = _noisy(users)
    return [
        Row(each, each.busy_seconds / busy if busy else 0.0, each.weight / weights, each.user_id in noisy)
        for each in users
    ]


def _noisy(users: Sequence[UserStats]) -> set[str]:
    """Those with far more waiting than half of the others."""
    found = set()
    for each in users:
        others = [waiting(other) for other in users if other is not each]
        if others and waiting(each) >= max(NOISY, TIMES_OTHERS * median(others)):
            found.add(each.user_id)
    return found


def remarks(table: Sequence[Row]) -> list[str]:
    """A sentence or two about each noisy user, and whether the quiet ones suffered."""
    noisy = [row for row in table if row.is_noisy]
    quiet = [row.stats for row in table if not row.is_noisy]
    total = sum(row.waiting for row in table)
    return [
        _("User %(user)s has %(waiting)s tasks waiting, %(part)s of what waits here.")
        % {"user": row.user_id, "waiting": number(row.waiting), "part": share(row.waiting / total)}
        + " "
        + _fate(row.stats, quiet)
        for row in noisy
    ]


def _fate(loud: UserStats, quiet: Sequence[UserStats]) -> str:
    started = sum(each.started for each in quiet)
    if not (started and loud.started):
        return _("How long the others wait beside it is not known yet.")
    theirs = sum(each.waited_seconds for each in quiet) / started
    own = loud.waited_seconds / loud.started
    facts = {"count": len(quiet), "theirs": duration(theirs), "own": duration(own)}
    beside = ngettext(
        "%(count)d other user waited %(theirs)s for a start on average, this one %(own)s:",
        "%(count)d other users waited %(theirs)s for a start on average, this one %(own)s:",
        len(quiet),
    )
    verdict = _("they did not suffer from it.") if theirs <= own else _("they wait longer than it does.")
    return f"{beside % facts} {verdict}"
