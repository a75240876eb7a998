"""Pauses of a queue, an organization or a user, with a note and an end. `lua/commands/pause.lua` and others store them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Union

from django_fairque.engine.model.durations import LATEST_TIME, duration, moment, now_us, number, to_us
from django_fairque.engine.model.errors import TaskValidationError, short
from django_fairque.engine.model.ids import check_text

MAX_PAUSE_NOTE_CHARACTERS = 200
PAUSE_FIELDS = ("paused", "pause_note")
"""Fields of a record. ``paused`` is 1 for a pause without an end, or the moment of the end in microseconds; 0 or missing if there
is no pause. In a call it may also be a length of time: a negative number of microseconds, which the server adds to its own time.
"""
RESUMED = {"paused": "", "pause_note": ""}
"""The fields that end a pause."""
PauseEnd = Union[float, datetime, timedelta, None]  # noqa: UP007 - evaluated on 3.10 too
"""The end of a pause: a Unix time, an aware datetime, a timedelta from the begin of the pause by the server's clock, or
None for no end."""


@dataclass(frozen=True)
class Pause:
    """A pause: its ``note`` (may be empty), and ``until``, the Unix time at which the server ends it (None for no end)."""

    note: str = ""
    until: float | None = None


def pause_fields(note: str, until: PauseEnd, now: float | None) -> dict[str, object]:
    """Return the fields of a new pause. White space in the note becomes single blanks.

    Raises:
        TaskValidationError: the note is no text or too long, or the end is no moment or not later than now.
    """
    text = " ".join(check_text(note, "note").split())
    if len(text) > MAX_PAUSE_NOTE_CHARACTERS:
        raise TaskValidationError(f"note must have at most {MAX_PAUSE_NOTE_CHARACTERS} characters, got {len(text)}")
    if isinstance(until, timedelta) and until > timedelta(0):
        return {**encode_pause(Pause(text)), "paused": -to_us(duration(until, "until"))}
    end = moment(until, "until")
    if end is not None and to_us(end) <= now_us(time.time() if now is None else now):
        raise TaskValidationError(f"until must be later than now, got {short(until)}")
    return encode_pause(Pause(text, end))


def encode_pause(pause: Pause) -> dict[str, object]:
    """Return the fields of this pause."""
    return {"paused": 1 if pause.until is None else to_us(pause.until), "pause_note": pause.note}


def decode_pause(record: Mapping[bytes, bytes | None]) -> Pause | None:
    """Return the pause in a record; None if there is none."""
    value = number(record.get(b"paused"))
    if not value:
        return None
    until = min(value / 1_000_000, LATEST_TIME) if value > 1 else None
    return Pause((record.get(b"pause_note") or b"").decode(errors="replace"), until)


def pause_values(pause: Pause | None) -> dict[str, Any]:
    """Return the values of a pause for an audit."""
    note, until = (None, None) if pause is None else (pause.note or None, pause.until)
    return {"paused": pause is not None, "note": note, "until": format_moment(until)}


def format_moment(moment: float | None) -> str | None:
    """Return a Unix time in UTC, to the second."""
    return None if moment is None else f"{datetime.fromtimestamp(moment, timezone.utc):%Y-%m-%d %H:%M:%SZ}"


def parse_moment(text: str | None) -> datetime | None:
    """Return the moment that `format_moment` wrote."""
    return None if text is None else datetime.strptime(text, "%Y-%m-%d %H:%M:%SZ").replace(tzinfo=timezone.utc)


def has_pause_end(record: Mapping[bytes, bytes]) -> bool:
    """Return whether the record has a pause that ends by itself."""
    return number(record.get(b"paused")) > 1
