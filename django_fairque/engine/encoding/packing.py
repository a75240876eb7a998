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
    """The byte strings that the scripts packed into one: ``3:abc0:…``.

    Raises:
        ValueError: somebody else has written this.
    """
    parts, at = [], 0
    while at < len(data):
        colon = data.index(b":", at)
        size = int(data[at:colon])
        if size < 0:  # it would lead back to what was read already
            raise ValueError(f"expected a packed list, got a part of {size} bytes in {data[:50]!r}")
        end = colon + 1 + size
        parts.append(data[colon + 1 : end])
        at = end
    return parts
