"""Organizations on one shard: what holds for one, its figures, and who is there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django_fairque.engine.inspection.pages import cursor_error
from django_fairque.engine.model import durations as units
from django_fairque.engine.model.ids import check_encodable
from django_fairque.engine.users.users import check_limit_value, check_weight

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from django_fairque.engine.scripting.commands import Commands
    from django_fairque.engine.scripting.operations import Operation


@dataclass(frozen=True)
class OrganizationStats:
    """An organization's figures, over the shards of its members.

    ``organization`` is its name. ``weight``, ``max_running`` (None for no limit) and ``paused`` are its settings.
    ``members`` belong to it, ``members_ready`` of them could start something now, whatever holds for the organization.
    ``running`` of their tasks run, ``started`` were started since the organization was made. A weight and a limit hold
    on each shard: the organization has a place in the ring of each shard.
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
    """Shards that can't be reached now: what lies there is in none of the figures."""

    @property
    def is_full(self) -> bool:
        """Whether as many of its tasks run as may at once."""
        return self.max_running is not None and self.running >= self.max_running

    @property
    def is_known(self) -> bool:
        """Whether it has members or settings; else nothing is kept of it."""
        return bool(self.members or self.paused or self.max_running) or self.weight != 1


def weight_fields(weight: float) -> dict[str, object]:
    return {"weight": check_weight(weight)}


def limit_fields(number: int | None) -> dict[str, object]:
    return {"cap": check_limit_value("max_running", number)}


def pause_fields(*, paused: bool) -> dict[str, object]:
    return {"paused": 1 if paused else ""}


def change(commands: Commands, organization: str, fields: Mapping[str, object], now: float | None) -> Operation[None]:
    pairs = [value for pair in fields.items() for value in pair]
    yield commands.call("organization", [organization, len(fields), *pairs], now)


def combine_records(
    organization: str, records: Sequence[Mapping[bytes, bytes]], missing: tuple[int, ...] = ()
) -> OrganizationStats:
    """One organization's records of several shards as one; settings are those of the first that has the organization."""
    settings = next((record for record in records if record), {})

    def total(field: str) -> int:
        return sum(number(record, field) for record in records)

    return OrganizationStats(
        organization=organization,
        weight=weight_in(settings),
        max_running=number(settings, "cap") or None,
        paused=b"paused" in settings,
        members=total("members"),
        members_ready=total("ready"),
        running=total("run"),
        started=total("started"),
        missing_shards=missing,
    )


def number(record: Mapping[bytes, bytes], field: str) -> int:
    return int(units.number(record.get(field.encode())))


def weight_in(record: Mapping[bytes, bytes]) -> float:
    return units.number(record.get(b"weight"), 1.0)


def check_cursor(cursor: Any) -> str:
    """A page's cursor is the last organization of the one before."""
    if cursor is not None and not (isinstance(cursor, str) and cursor):
        raise cursor_error(cursor)
    if cursor is not None:
        check_encodable(cursor, "cursor")
    return "-" if cursor is None else f"({cursor}"
