"""Reads the users with the longest waits in each half hour of the last day, for the heat map of the admin."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from django_fairque.engine.queue.lockstep import read_in_lockstep
from django_fairque.engine.scripting.operations import Operation, read_each
from django_fairque.engine.statistics.wait_history import HALF_HOUR_SECONDS, HISTORY_KEY, SHOWN_HALF_HOURS, HalfHour

if TYPE_CHECKING:
    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.engine.sharding.shards import Shards


@dataclass(frozen=True)
class UserWaits:
    """The waits of one user (``user_id``) in each half hour: the longest wait in seconds (``waits``), and the highest
    number of ready tasks (``ready``).

    A value is 0 if the user was not among the users with the longest waits, and None if no worker recorded waits.
    """

    user_id: str
    waits: tuple[int | None, ...]
    ready: tuple[int | None, ...]

    @property
    def longest(self) -> int:
        """The user's longest wait, in seconds."""
        return max((wait for wait in self.waits if wait is not None), default=0)


@dataclass(frozen=True)
class WaitHistory:
    """The longest waits of the last 24 hours. ``begins`` contains the starts of the half hours, as Unix times.

    ``users`` are users who waited longer than a second, the longest wait first. At most 60 users of each shard are
    examined once a minute, and the 15 users with the longest waits are recorded for each half hour. ``medians`` has a
    value in seconds for each half hour: every minute has a median of the waits of all examined users, and the value is
    the largest of these medians; None if no worker recorded waits.
    """

    begins: list[int]
    users: list[UserWaits] = field(default_factory=list)
    medians: tuple[int | None, ...] = ()
    missing_shards: tuple[int, ...] = ()
    """Shards that can't be reached now, so their users are missing."""


def wait_history(queue: FairQueue) -> WaitHistory:
    """Return the longest waits of the last 24 hours from all shards that can be reached."""
    (history,) = read_in_lockstep([(queue, _read)])
    return history  # type: ignore[no-any-return]


def _read(shards: Shards) -> Operation[WaitHistory]:
    clock, *found = yield from read_each(
        [[("TIME",)], *([("HGETALL", shard.keys(HISTORY_KEY))] for shard in shards)], only_sound=True
    )
    last = int(clock[0][0]) // HALF_HOUR_SECONDS
    shown = range(last - SHOWN_HALF_HOURS + 1, last + 1)
    records: dict[int, list[HalfHour]] = {half_hour: [] for half_hour in shown}
    for (packed,) in found:
        for record in filter(None, map(HalfHour.parse, packed.values())):
            records.get(record.half_hour, []).append(record)
    nothing = [0 if some else None for some in records.values()]
    waits: dict[str, list[int | None]] = {}
    ready: dict[str, list[int | None]] = {}
    for index, some in enumerate(records.values()):
        for half_hour in some:
            for user, (wait, count) in half_hour.users.items():
                for figures, value in ((waits, wait), (ready, count)):
                    of_user = figures.setdefault(user, [*nothing])
                    of_user[index] = max(of_user[index] or 0, value)
    users = [UserWaits(user, tuple(waits[user]), tuple(ready[user])) for user in waits]
    return WaitHistory(
        begins=[half_hour * HALF_HOUR_SECONDS for half_hour in shown],
        users=sorted(users, key=lambda user: (-user.longest, user.user_id)),
        medians=tuple(max((half_hour.median_seconds for half_hour in some), default=None) for some in records.values()),
        missing_shards=shards.missing,
    )
