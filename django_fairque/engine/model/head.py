"""The head of a task: its constant fields, stored in the same string before its payload (``lua/lib/heads.lua``).

A task with a head has no record before its first change. If a field is in the record and in the head, the record counts.
"""

from __future__ import annotations

from collections.abc import Mapping

MAX_HEAD_BYTES = 500
"""The largest size of a head. A reader that does not need the payload reads only this many bytes."""
HEAD_FIELDS = ("user", "created", "trace")
"""The parts of a head; the last part holds the values of `COMMON_FIELDS`."""
COMMON_FIELDS = ("priority", "max_retries", "name", "timeout", "retries", "max_deliveries")

_SIGN, _BETWEEN = b"\x1f", b"\x1d"


def split_head(text: bytes) -> tuple[dict[bytes, bytes], bytes]:
    """Return the fields in the head (none if there is no head), and the payload."""
    if not text.startswith(_SIGN):
        return {}, text
    *parts, payload = text[1:].split(_SIGN, len(HEAD_FIELDS) + 1)
    if len(parts) != len(HEAD_FIELDS) + 1:  # the bytes are no head
        return {}, text
    values = [*parts[:-1], *parts[-1].split(_BETWEEN)]
    fields = zip((*HEAD_FIELDS, *COMMON_FIELDS), values, strict=False)
    return {b"state": b"queued", **{name.encode(): value for name, value in fields if value}}, payload


def head_size(text: bytes) -> int:
    """Return the number of bytes of the head at the beginning of a string; 0 if there is no head."""
    return len(text) - len(split_head(text)[1])


def whole_record(record: Mapping[bytes, bytes], text: bytes | None) -> tuple[Mapping[bytes, bytes], bytes]:
    """Return the fields of the record and the head, and the payload. ``text`` is the string with the head and the payload."""
    fields, payload = split_head(text or b"")
    return {**fields, **record} if fields else record, payload
