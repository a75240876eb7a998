"""Lists of byte strings as the scripts pack them into one (`pack` in lua/lib/base.lua)."""

from __future__ import annotations


def unpack(data: bytes) -> list[bytes]:
    """The byte strings that the scripts packed into one: ``3:abc0:…``."""
    parts, at = [], 0
    while at < len(data):
        colon = data.index(b":", at)
        end = colon + 1 + int(data[at:colon])
        parts.append(data[colon + 1 : end])
        at = end
    return parts
