"""Lists of byte strings as the scripts pack them into one (`pack` in lua/lib/base.lua)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable


def pack(values: Iterable[Any]) -> bytes:
    """The other way round, of texts, bytes and whole numbers."""
    raw = (value if isinstance(value, bytes) else str(value).encode() for value in values)
    return b"".join(b"%d:%b" % (len(value), value) for value in raw)


def unpack(data: bytes) -> list[bytes]:
    """The byte strings that the scripts packed into one: ``3:abc0:…``."""
    parts, at = [], 0
    while at < len(data):
        colon = data.index(b":", at)
        end = colon + 1 + int(data[at:colon])
        parts.append(data[colon + 1 : end])
        at = end
    return parts
