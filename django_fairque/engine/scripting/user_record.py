"""The stored form of a user's record (``lua/lib/user_record.lua``): one string with eight bytes for each number."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from django_fairque.engine.model.ids import split_names
from django_fairque.engine.model.payload import pack, unpack

_FIRST_PART = split_names("""
    tag ready:3 run expected start over credit counted came started finished busy waited mean since hour
""")
_GROUPS = (
    split_names("""
        ready:0 ready:1 ready:2 ready:4 ready:5 ready:6 ready:7 sched deferred limited parked parked_urgent bytes dead
        result_bytes failed companions urgent_tag lane_turn weight cap rate gap burst backlog max_bytes sla paused held tat rated
        last_gap debt resolve_turn plan_looked_up plan_deployed
    """),
    tuple(f"recent:{half}{bucket}" for half in range(2) for bucket in ("", *(f":{index}" for index in range(16)))),
    ("period", *(f"{name}:{index}" for name in ("ended", "before") for index in range(21))),
)
_FIRST_SIZE = 8 * (len(_FIRST_PART) + len(_GROUPS))
_NEVER_SERVED = float("-inf")
_LIMIT = 1e24
"""A bound for the numbers of a record. A larger number means that the record is damaged."""


def read_user_record(text: bytes | None) -> dict[bytes, bytes]:
    """Return the fields of the record that have a value; none without a record. Raises `ValueError` for other bytes."""
    if text is None:
        return {}
    try:
        numbers = struct.unpack_from(f"<{len(_FIRST_PART) + len(_GROUPS)}d", text)
        values, masks = numbers[: len(_FIRST_PART)], numbers[len(_FIRST_PART) :]
        names = [name for mask, group in zip(masks, _GROUPS, strict=True) for name in _names_of(int(mask), group)]
        others = struct.unpack_from(f"<{len(names)}d", text, _FIRST_SIZE)
        rest = text[_FIRST_SIZE + 8 * len(names) :]
        parts = unpack(rest)
        texts = dict(zip(parts[::2], parts[1::2], strict=True))
        if pack(parts) != rest:
            raise ValueError("a part ends early")  # noqa: TRY301
    except (struct.error, ValueError, OverflowError):
        raise ValueError(f"expected a user's record, got {text[:50]!r}") from None
    if not (values[0] < _LIMIT and all(abs(value) < _LIMIT for value in (*values[1:], *others))):
        raise ValueError(f"expected a user's record, got numbers that no time or count reaches: {text[:50]!r}")
    record = {
        name.encode(): _number_text(value)
        for name, value in zip(_FIRST_PART, values, strict=True)
        if value not in (0, _NEVER_SERVED)
    }
    record |= {name.encode(): _number_text(value) for name, value in zip(names, others, strict=True)}
    return record | texts


def _names_of(mask: int, group: Sequence[str]) -> Iterator[str]:
    if not 0 <= mask < 1 << len(group):
        raise ValueError("a field that this version does not know")
    return (name for bit, name in enumerate(group) if mask >> bit & 1)


def _number_text(value: float) -> bytes:
    return (b"%d" % int(value)) if value.is_integer() else repr(value).encode()
