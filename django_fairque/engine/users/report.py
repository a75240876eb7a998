"""``queue.user(id).report()``: the figures of a user and the errors behind its failures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from django_fairque.engine.dead_letters.dead_letters import MAX_DEAD_LETTERS_READ, DeadLetterScan
from django_fairque.engine.dead_letters.letters import DLQGroup, Letter, make_group
from django_fairque.engine.model.durations import check_integer
from django_fairque.engine.users.history import (
    USER_DAYS,
    USER_HOURS,
    UserHistory,
    UserPeriod,
    add_up_periods,
    history,
)

if TYPE_CHECKING:
    from django_fairque.engine.scripting.commands import Commands
    from django_fairque.engine.scripting.operations import Operation

REPORT_HOURS = 2


@dataclass(frozen=True)
class UserReport:
    """The figures of ``user_id`` in ``queue``: its ``history``, and in ``recent`` the sums of its last hours.

    ``errors`` are its dead letters of these hours, grouped by error, the largest group first. A dead letter that was
    requeued, discarded or removed since is counted in ``recent.dead``, but is in no group. ``is_whole`` is False if
    more than 10,000 newer dead letters of all users hide older dead letters of this user.
    """

    user_id: str
    queue: str
    recent: UserPeriod
    history: UserHistory
    errors: tuple[DLQGroup, ...]
    is_whole: bool
    ready: int = 0
    """The number of its tasks that are ready now."""
    held_by: str | None = None
    """The reason why none of the user's ready tasks can start (as in `UserStats`); None if they can."""

    @property
    def ended(self) -> int:
        """The number of its tasks that finished or became dead letters in these hours."""
        return self.recent.finished + self.recent.dead

    @property
    def known_errors(self) -> int:
        """The number of the dead letters in ``errors``."""
        return sum(group.count for group in self.errors)

    @property
    def failing_since(self) -> float | None:
        """The Unix time of the oldest dead letter in ``errors``; None if there is none."""
        return min((group.oldest for group in self.errors), default=None)


def report(commands: Commands, user_id: str, hours: int, now: float | None) -> Operation[UserReport]:
    check_integer(hours, "hours", 1, USER_HOURS)
    figures = yield from history(commands, user_id, USER_HOURS, USER_DAYS, now)
    recent = add_up_periods(figures.hours[-hours:])
    found, is_whole = yield from _letters_since(commands, user_id, recent.begin)
    by_error: dict[str, list[Letter]] = {}
    for letter in found:
        by_error.setdefault(letter.fingerprint, []).append(letter)
    groups = [make_group(key, members) for key, members in by_error.items()]
    groups.sort(key=lambda group: (-group.count, -group.newest, group.fingerprint))
    return UserReport(user_id, commands.name, recent, figures, tuple(groups), is_whole)


def _letters_since(commands: Commands, user_id: str, begin: float) -> Operation[tuple[list[Letter], bool]]:
    """Return the dead letters of a user since ``begin``, and whether the list is complete."""
    scan, found = DeadLetterScan(commands, MAX_DEAD_LETTERS_READ, newest_first=True), list[Letter]()
    while (some := (yield from scan.read_slice())) is not None:
        found += [letter for letter in some if letter.user_id == user_id and letter.moved_at >= begin]
        if some and max(letter.moved_at for letter in some) < begin:
            return found, True
    return found, scan.read_count < MAX_DEAD_LETTERS_READ
