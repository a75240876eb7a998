"""Collects what happened around an incident: the affected users, the users with the most work, the first error, and
releases.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django_fairque.engine.dead_letters.dead_letters import letters
from django_fairque.engine.inspection.pages import sizes, user_names
from django_fairque.engine.inspection.task_lookup import server_time
from django_fairque.engine.model.durations import now_us, number
from django_fairque.engine.queue.lockstep import read_in_lockstep
from django_fairque.engine.scripting.operations import Operation, Read, read_sound, read_together
from django_fairque.engine.statistics.deployments import Deployment, deployed
from django_fairque.engine.statistics.queue_stats import busy_last_hour, wait_bucket_middle
from django_fairque.engine.statistics.wait_history import HALF_HOUR_SECONDS, HISTORY_KEY, SHOWN_HALF_HOURS, HalfHour
from django_fairque.engine.users.history import USER_HOURS, UserPeriod, sums

if TYPE_CHECKING:
    from django_fairque.engine.dead_letters.letters import Letter
    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.engine.scripting.commands import Commands
    from django_fairque.engine.sharding.shards import Shards
    from django_fairque.engine.statistics.incidents import Incident

MAX_IMPACT_USERS = 500
"""Maximum number of users whose figures are read."""
ERRORS_BEFORE_SECONDS = 600.0
RELEASES_BEFORE_SECONDS = 86_400.0
BUCKET_HALF_WIDTH = math.sqrt(3)
"""Factor between the middle of a bucket of waits and its bounds: a bucket begins at its middle divided by this factor,
and ends at its middle times this factor."""
HOUR_SECONDS, DAY_SECONDS = 3600, 86_400


@dataclass(frozen=True)
class UserImpact:
    """The figures (``figures``) of the user ``user_id`` in the hours of an incident.

    ``late_seconds`` is the total time by which the user's late tasks started after their SLA. This is an estimate from
    the histogram of waits and the SLA of the user or of the incident's priority. None for incidents of other rules, of
    lane urgent (the histogram is of all lanes), and if tasks had an SLA of their own. ``ready`` is the number of the
    user's tasks that are ready now. ``busy_seconds`` is the user's worker time in the last sixty minutes; None if the
    incident ended before.
    """

    user_id: str
    figures: UserPeriod
    late_seconds: float | None
    ready: int
    busy_seconds: float | None


@dataclass(frozen=True)
class Impact:
    """The circumstances of ``incident``, from the data that still exist.

    ``users`` are the examined users: users with alerts, with the longest waits, and with tasks. ``known_users`` is the
    number of all users of the queue. The figures cover the clock hours that overlap with the incident
    (``period_seconds`` is 3600), from ``begin`` to ``end`` (Unix times). If the incident began more than 48 hours ago,
    the figures cover days in UTC (86,400). An attempt belongs to the hour in which it ended.

    ``first_error`` is the oldest dead letter between ten minutes before the incident and its end, and ``dead_letters``
    is the number of dead letters in this time. ``releases`` are versions of the project's code that workers first
    reported in the 24 hours before the incident or during it.
    """

    incident: Incident
    begin: int
    end: int
    period_seconds: int
    users: list[UserImpact]
    known_users: int
    first_error: Letter | None
    dead_letters: int
    releases: list[Deployment]

    @property
    def hurt(self) -> list[UserImpact]:
        """The users with late tasks. The user with most late tasks comes first."""
        late = [user for user in self.users if user.figures.sla_missed]
        return sorted(late, key=lambda user: (-user.figures.sla_missed, user.user_id))

    @property
    def waiting(self) -> list[UserImpact]:
        """The users whose tasks are ready and waiting now. No figures include these tasks yet."""
        return [user for user in self.users if user.ready]

    @property
    def late_seconds(self) -> float | None:
        """The total time by which late tasks of these users started after their SLA; None if it is not known."""
        known = [user.late_seconds for user in self.users if user.late_seconds is not None]
        return sum(known) if known else None

    @property
    def late_tasks(self) -> int:
        """The number of attempts of these users that started later than their SLA."""
        return sum(user.figures.sla_missed for user in self.users)

    @property
    def busiest(self) -> list[UserImpact]:
        """The users with attempts in these hours, sorted by their worker time in the last sixty minutes, then by the
        number of attempts, both in descending order.
        """
        active = [user for user in self.users if user.figures.wait.count or user.busy_seconds]
        return sorted(active, key=lambda user: (-(user.busy_seconds or 0.0), -user.figures.wait.count, user.user_id))


def incident_impact(queue: FairQueue, incident: Incident, *, now: float | None = None) -> Impact:
    """Return the circumstances of an incident of ``queue``. ``now`` is the Unix time of the report; by default the
    server's time.
    """
    (found,) = read_in_lockstep([(queue, lambda shards: _read(shards, incident, now))])
    return found  # type: ignore[no-any-return]


def _read(shards: Shards, incident: Incident, now: float | None) -> Operation[Impact]:
    moment = yield from server_time(now)
    end = moment if incident.closed_at is None else incident.closed_at
    parts: list[Operation[Any]] = [
        _users_with_waits(shards, incident.opened_at, end, moment),
        _users_now(shards),
        _first_error(shards, incident.opened_at - ERRORS_BEFORE_SECONDS, end),
        _releases(shards, incident.opened_at - RELEASES_BEFORE_SECONDS, end),
    ]
    waits, (names, known), (error, dead), releases = yield from read_together(parts)
    chosen = list(dict.fromkeys([*incident.users, *waits, *names]))[:MAX_IMPACT_USERS]
    is_day = incident.opened_at // HOUR_SECONDS <= moment // HOUR_SECONDS - USER_HOURS
    seconds = DAY_SECONDS if is_day else HOUR_SECONDS
    first, last = int(incident.opened_at // seconds), int(end // seconds)
    figures = yield from sums(shards.route_names().keys, chosen, first, last, is_day=is_day)
    usual = shards.config.sla.get(incident.subject) if incident.rule == "sla" else None
    users = [
        _user(user, period, record, usual, moment if end > moment - HOUR_SECONDS else None)
        for user, (period, record) in zip(chosen, figures, strict=True)
    ]
    begin, until = first * seconds, (last + 1) * seconds
    return Impact(incident, begin, until, seconds, users, max(known, len(chosen)), error, dead, releases)


def _user(
    user: str, period: UserPeriod, record: Mapping[bytes, bytes], usual: float | None, now: float | None
) -> UserImpact:
    late = None if usual is None else _late_seconds(period, number(record.get(b"sla")) / 1e6 or usual)
    busy = None if now is None else busy_last_hour(record, now_us(now))
    return UserImpact(user, period, late, sizes(record).ready, busy)


def _late_seconds(period: UserPeriod, within: float) -> float | None:
    """Estimate the total time by which the late attempts of a period started after their SLA. None if some tasks had
    another, shorter SLA.
    """
    late, left = 0.0, period.sla_missed
    # the late attempts are the ones with the longest waits
    for bucket, count in sorted(period.waits.items(), reverse=True):
        if not left:
            break
        middle = wait_bucket_middle(bucket)
        begin, end = middle / BUCKET_HALF_WIDTH, middle * BUCKET_HALF_WIDTH
        if end <= within:
            return None
        late += min(left, count) * (math.sqrt(max(begin, within) * end) - within)
        left -= min(left, count)
    return late


def _users_now(shards: Shards) -> Operation[tuple[list[str], int]]:
    """Return users of the queue, beginning with users that have tasks, and the number of all users."""
    counts = yield Read([("ZCARD", shard.keys("users")) for shard in shards])
    page = yield from user_names(shards, None, MAX_IMPACT_USERS, busy_first=True)
    return list(page.items), sum(map(int, counts))


def _users_with_waits(shards: Shards, begin: float, end: float, now: float) -> Operation[list[str]]:
    """Return the users with the longest recorded waits in this time, which must be within the last day."""
    first = max(begin, now - SHOWN_HALF_HOURS * HALF_HOUR_SECONDS) // HALF_HOUR_SECONDS
    numbers = range(int(first), int(end // HALF_HOUR_SECONDS) + 1)
    if not numbers:
        return []
    fields = [HalfHour(half_hour, 0, {}).field for half_hour in numbers]
    replies = yield from read_sound([("HMGET", shard.keys(HISTORY_KEY), *fields) for shard in shards])
    found = [HalfHour.parse(value) for values in replies for value in values]
    return [user for one in found if one is not None and one.half_hour in numbers for user in one.users]


def _first_error(shards: Shards, begin: float, end: float) -> Operation[tuple[Letter | None, int]]:
    """Return the first dead letter in this time, and the number of dead letters in it."""
    found = yield from read_together([_first_on(shard, begin, end) for shard in shards])
    oldest = [letter for letter, _ in found if letter is not None]
    return min(oldest, key=lambda letter: letter.moved_at, default=None), sum(count for _, count in found)


def _first_on(commands: Commands, begin: float, end: float) -> Operation[tuple[Letter | None, int]]:
    # The score is the moment at which a dead letter will be removed. If `failed_ttl` was changed, dead letters from
    # before the change are not found.
    key, kept = commands.keys.state("failed"), commands.config.failed_ttl
    low, high = (f"{(moment + kept) * 1e6:.0f}" for moment in (begin, end))
    count, ids = yield Read([("ZCOUNT", key, low, high), ("ZRANGE", key, low, high, "BYSCORE", "LIMIT", 0, 1)])
    found = yield from letters(commands, [task_id.decode() for task_id in ids])
    return next(iter(found), None), int(count)


def _releases(shards: Shards, begin: float, end: float) -> Operation[list[Deployment]]:
    found = yield from deployed(shards)
    return sorted((one for one in found if begin <= one.at <= end), key=lambda one: one.at)
