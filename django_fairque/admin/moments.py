"""The engine's moments (seconds since the epoch) as the admin shows them."""

from __future__ import annotations

from datetime import datetime, timezone


def moment(seconds: float | None) -> datetime | None:
    """Aware, in UTC: templates show it in the admin's time zone."""
    return None if seconds is None else datetime.fromtimestamp(seconds, timezone.utc)
