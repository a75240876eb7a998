"""The head of a task: what never changes of it, in front of its payload in the same string (``lua/lib/heads.lua``).

A task with a head has no record before its first change. A field of the record counts, whatever the head says of it.
"""

from __future__ import annotations

from collections.abc import Mapping

MAX_HEAD_BYTES = 500
"""The most bytes of a head: who needs no payload reads no more."""
HEAD_FIELDS = ("user", "created", "trace")
"""The parts of a head; the last part holds the values of `COMMON_FIELDS`."""
COMMON_FIELDS = ("priority", "max_retries", "name", "timeout", "retries", "max_deliveries")

_SIGN, _BETWEEN = b"\x1f", b"\x1d"


def split_head(text: bytes) -> tuple[dict[bytes, bytes], bytes]:
    """The fields that the head stands for, none if there is no head, and the payload."""
    if not text.startswith(_SIGN):
        return {}, text
    *parts, payload = text[1:].split(_SIGN, len(HEAD_FIELDS) + 1)
    if len(parts) != len(HEAD_FIELDS) + 1:  # nobody's head
        return {}, text
    values = [*parts[:-1], *parts[-1].split(_BETWEEN)]
    fields = zip((*HEAD_FIELDS, *COMMON_FIELDS), values, strict=False)
    return {b"state": b"queued", **{name.encode(): value for name, value in fields if value}}, payload


def head_size(text: bytes) -> int:
    """The bytes of the head with which a string begins; 0 if there is no head."""
    return len(text) - len(split_head(text)[1])


def whole_record(record: Mapping[bytes, bytes], text: bytes | None) -> tuple[Mapping[bytes, bytes], bytes]:
    """The fields of the record and of the head in the string of the payload, and the payload."""
    fields, payload = split_head(text or b"")
    return {**fields, **record} if fields else record, payload
