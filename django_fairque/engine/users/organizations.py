"""The organizations of a queue: their weights, limits and pauses, their figures over all shards, and their members.

Each shard that has members of an organization has its own record of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django_fairque.engine.inspection.pages import PartialList, ResultPage, check_limit, cursor_error
from django_fairque.engine.model.durations import number
from django_fairque.engine.model.errors import TaskValidationError
from django_fairque.engine.model.ids import check_encodable, check_id, check_ids
from django_fairque.engine.model.lanes import LANES, class_of
from django_fairque.engine.model.pauses import RESUMED, Pause, PauseEnd, decode_pause, pause_fields, pause_values
from django_fairque.engine.model.plans import MAX_SHARE, check_limit_value, check_share, check_weight
from django_fairque.engine.scripting.acts import Act, Values, record_act
from django_fairque.engine.scripting.commands import Fields, list_fields
from django_fairque.engine.scripting.operations import Operation, read_each
from django_fairque.engine.users.users import users_with

if TYPE_CHECKING:
    from django_fairque.engine.sharding.shards import AllShardsReader, Shards


@dataclass(frozen=True)
class OrganizationStats:
    """An organization's figures, over the shards of its members.

    ``organization`` is its name. ``weight``, ``max_running`` (None for no limit), ``paused`` and ``share`` (of the
    worker time that is guaranteed, from 0 to 1, or None) are its settings. ``members`` is the number of its members.
    ``members_ready`` is the least number of members with a task that could start now, apart from limits of the
    organization: the largest number in one lane, which is exact unless members use several lanes. ``running`` is the
    number of their running tasks, and ``started`` the number of tasks that were started since the organization was
    made. The weight and the limit apply to each shard separately.
    """

    organization: str
    weight: float
    max_running: int | None
    paused: bool
    members: int
    members_ready: int
    running: int
    started: int
    missing_shards: tuple[int, ...] = ()
    """The numbers of shards that can't be reached now; the figures do not include their data."""
    pause: Pause | None = None
    """The note and the end of the organization's pause; None unless it is paused."""
    share: float | None = None

    @property
    def is_full(self) -> bool:
        """Whether the organization runs as many tasks as it may at once."""
        return self.max_running is not None and self.running >= self.max_running

    @property
    def is_known(self) -> bool:
        """Whether the organization has members or settings; otherwise the queue keeps no record of it."""
        return bool(self.members or self.paused or self.max_running or self.share) or self.weight != 1


class OrganizationQueue:
    """One organization of one queue, returned by ``queue.organization(name)``: its members together get the share of
    one user.

    A user belongs to at most one organization: ``queue.user(user_id).set_organization(name)``. Most methods take
    ``now``, as the methods of the queue do. Changes hold on every shard and act at once. Methods raise
    `ShardsAwayError` if some shards can't be reached (the others are changed), and `TaskValidationError` if a value is
    out of range.
    """

    def __init__(self, read_all_shards: AllShardsReader, organization: str) -> None:
        self.organization = check_id(organization, "organization")
        self._read_all_shards = read_all_shards

    def _change(self, act: str, fields: dict[str, object], now: float | None) -> None:
        self._read_all_shards(lambda shards: record_change(shards, self.organization, act, fields, now))

    def change_if(self, act: str, fields: Fields, expected: Fields, *, now: float | None = None) -> bool:
        """Change fields of the organization's record if others have the expected values on its first shard. For
        `django_fairque.audit`.

        ``act`` is the name for the audit; ``fields`` and ``expected`` are those of ``lua/commands/organization.lua``. Returns
        whether the values were the expected ones.
        """
        return self._read_all_shards(
            lambda shards: record_change(shards, self.organization, act, fields, now, expected)
        )

    def set_weight(self, weight: float, *, now: float | None = None) -> None:
        """Set the share of all members together: ``weight`` times that of a user of weight 1, from 0.001 to 1000."""
        self._change("weight", {"weight": check_weight(weight)}, now)

    def set_max_running(self, number: int | None, *, now: float | None = None) -> None:
        """Limit how many tasks of all members run at once, on each shard.

        ``number`` is from 1 to 1,000,000; None for no limit.
        """
        self._change("limits", {"cap": check_limit_value("max_running", number)}, now)

    def set_share(self, share: float | None, *, now: float | None = None) -> None:
        """Guarantee the organization a part of the worker time of each shard while it has tasks that can start.

        ``share`` is from 0.01 to 0.9; None to guarantee nothing. The share is a minimum: an organization whose weight gives
        it more gets more, and other users get the time that it does not use. The shares of all organizations may be 0.9
        together. Raises `TaskValidationError` if the sum would be larger.
        """
        self._change("share", {"share": check_share(share)}, now)

    def pause(self, *, note: str = "", until: PauseEnd = None, now: float | None = None) -> None:
        """Start none of the members' tasks. Pushes go on, and running tasks end.

        ``note`` is a text of at most 200 characters that is shown with the pause; empty by default. ``until`` is the
        moment at which the pause ends by itself, by the server's clock: a Unix time, an aware datetime, or a timedelta
        from now. None, the default, is for no end. A later pause replaces the note and the end.
        """
        self._change("pause", pause_fields(note, until, now), now)

    def resume(self, *, now: float | None = None) -> None:
        """Start the members' tasks again."""
        self._change("resume", {**RESUMED}, now)

    def stats(self) -> OrganizationStats:
        """Return the organization's figures, settings and limits now."""
        return self._read_all_shards(lambda shards: stats(shards, [self.organization]))[0]

    def members(self, cursor: str | None = None, limit: int = 100) -> ResultPage[str]:
        """Return a page of the members' ids.

        ``cursor`` is that of the previous page; None for the first page. ``limit`` is the number of users of the queue
        that are read, from 1 to 1000; 100 by default. So a page may be empty although more follow.
        """
        return self._read_all_shards(lambda shards: members(shards, self.organization, cursor, limit))


def record_change(
    shards: Shards, organization: str, act: str, fields: Fields, now: float | None, expected: Fields | None = None
) -> Operation[bool]:
    """Change the organization's settings, and record the act."""

    def read_settings() -> Operation[Values]:
        (found,) = yield from stats(shards, [organization])
        return {
            **pause_values(found.pause),
            **{name: getattr(found, name) for name in ("weight", "share", "max_running")},
        }

    steps = change(shards, organization, fields, now, expected)
    return record_act(Act(shards.name, act, "organization", organization), steps, read_settings)


def change(
    shards: Shards, organization: str, fields: Fields, now: float | None, expected: Fields | None = None
) -> Operation[bool]:
    """Change the organization on the shards that can be reached, then raise `ShardsAwayError` if some can't be. Return
    False if the first shard does not have the expected values.
    """
    for shard in shards:
        others = yield shard.call("organization", [organization, *list_fields(fields), *list_fields(expected)], now)
        expected = None
        if others == 0:
            return False
        if isinstance(others, list):
            raise TaskValidationError(_refuse_share(organization, float(str(fields["share"])), others))
    shards.check_present(f"organization {organization!r} was changed without some")
    return True


def _refuse_share(organization: str, share: float, others: Sequence[bytes]) -> str:
    held = {name.decode(): float(part) for name, part in zip(others[::2], others[1::2], strict=True)}
    largest = sorted(held, key=lambda name: -held[name])[:5]
    names = ", ".join(f"{name!r} {held[name]:g}" for name in largest) + (", …" if len(held) > len(largest) else "")
    return (
        f"the shares of all organizations of a shard may be {MAX_SHARE:g} together, got {share + sum(held.values()):g}: "
        f"{organization!r} {share:g}, {names}. Choose a smaller share, or lower or remove another one with set_share()"
    )


def stats(shards: Shards, names: Sequence[str]) -> Operation[PartialList[OrganizationStats]]:
    """Return the figures of these organizations, in order, in one round trip."""
    names = check_ids(names, "organizations")
    parts = [[("HGETALL", shard.keys.organization(name)) for shard in shards] for name in names]
    found = yield from read_each(parts, only_sound=True)
    organizations = [combine_records(name, records, shards.missing) for name, records in zip(names, found, strict=True)]
    return PartialList(organizations, shards.missing)


def members(shards: Shards, organization: str, cursor: str | None, limit: int) -> Operation[ResultPage[str]]:
    wanted = organization.encode()
    return (yield from users_with(shards, "group", lambda group: group == wanted, cursor, limit))


def page(shards: Shards, cursor: str | None, limit: int) -> Operation[ResultPage[str]]:
    """Return a page of the organizations' names, in the order of their bytes, each once."""
    check_limit(limit)
    after = "-"
    if cursor is not None:
        if not (isinstance(cursor, str) and cursor):
            raise cursor_error(cursor)
        check_encodable(cursor, "cursor")
        after = f"({cursor}"
    found = yield from read_each(
        [[("ZRANGE", shard.keys("groups"), after, "+", "BYLEX", "LIMIT", 0, limit)] for shard in shards]
    )
    names = sorted({name for (members,) in found for name in members})[:limit]
    is_last = len(names) < limit
    items = [name.decode() for name in names]
    return ResultPage(items, None if is_last else items[-1], shards.missing)


_READY_BY_LANE = (b"ready", *(b"ready:%d" % class_of(lane, 0) for lane in LANES if lane != "normal"))
"""The fields with the numbers of members that have a task of a lane that can be started."""


def combine_records(
    organization: str, records: Sequence[Mapping[bytes, bytes]], missing: tuple[int, ...] = ()
) -> OrganizationStats:
    """Combine one organization's records on several shards. Settings are those of the first shard that has the
    organization.
    """
    settings = next((record for record in records if record), {})

    def total(field: bytes) -> int:
        return sum(int(number(record.get(field))) for record in records)

    return OrganizationStats(
        organization=organization,
        weight=number(settings.get(b"weight"), 1.0),
        max_running=int(number(settings.get(b"cap"))) or None,
        paused=b"paused" in settings,
        members=total(b"members"),
        members_ready=sum(max(int(number(record.get(field))) for field in _READY_BY_LANE) for record in records),
        running=total(b"run"),
        started=total(b"started"),
        missing_shards=missing,
        pause=decode_pause(settings),
        share=number(settings.get(b"share")) or None,
    )
