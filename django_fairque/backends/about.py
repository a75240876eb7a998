"""What travels with a call beside its arguments, because the queue's record has no place for it.

So the result of a call is the same wherever it is looked at: with its very priority, not only its class.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.utils.dateparse import parse_datetime

if TYPE_CHECKING:
    from django_fairque.engine.model.task import Task as Record

    from .compat import AnyTask


@dataclass(frozen=True)
class About:
    """How a call was sent; None where that is not known, for example of what a schedule has sent."""

    at: datetime | None = None
    backend: str | None = None
    priority: int | None = None
    run_after: datetime | None = None
    user_id: str | None = None

    @classmethod
    def for_call(cls, task: AnyTask, now: datetime) -> About:
        return cls(now, task.backend, int(task.priority), task.run_after, getattr(task, "user_id", None))

    @classmethod
    def of(cls, record: Record) -> About:
        """What a record's payload says. People can edit payloads: what makes no sense counts as not said."""
        said = record.payload.get("about") if isinstance(record.payload, dict) else None
        if not isinstance(said, dict):
            return cls()
        priority = said.get("priority")
        is_number = isinstance(priority, int) and not isinstance(priority, bool) and -100 <= priority <= 100
        return cls(
            _metadata_moment(said.get("at")),
            _metadata_text(said.get("backend")),
            priority if is_number else None,
            _metadata_moment(said.get("run_after")),
            _metadata_text(said.get("user_id")),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            name: value.isoformat() if isinstance(value, datetime) else value
            for name, value in asdict(self).items()
            if value is not None
        }


def _metadata_moment(value: object) -> datetime | None:
    try:
        return parse_datetime(value) if isinstance(value, str) else None
    except ValueError:  # well formed, but no such day
        return None


def _metadata_text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
