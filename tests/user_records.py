"""Read and change the record of a user as it is on the server."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from django_fairque.engine.model.payload import pack
from django_fairque.engine.scripting import user_record
from django_fairque.engine.scripting.user_record import read_user_record

if TYPE_CHECKING:
    from redis import Redis

TEXTS = ("group", "pause_note", "plan", "explicit")


def _read(redis: Redis, key: str | bytes) -> dict[bytes, bytes]:
    text = redis.get(key)
    assert text is None or isinstance(text, bytes)
    return read_user_record(text)


def number_of(redis: Redis, key: str | bytes, field: str) -> float:
    """Return a number of the user's record; 0 if it has none."""
    return float(_read(redis, key).get(field.encode(), 0))


def change_record(redis: Redis, key: str | bytes, **changes: float | str | None) -> None:
    """Set fields of the user's record, or remove them (None). ``ready_3`` stands for ``ready:3``."""
    fields = {name.decode(): value for name, value in _read(redis, key).items()}
    for name, value in changes.items():
        field = name.replace("_", ":") if name.startswith(("ready_", "recent_", "ended_", "before_")) else name
        fields.pop(field, None)
        if value is not None:
            fields[field] = str(value).encode()
    redis.set(key, write_user_record(fields))


def write_user_record(fields: dict[str, bytes]) -> bytes:
    default = {"tag": float("-inf")}
    first = [float(fields.get(name, default.get(name, 0))) for name in user_record._FIRST_PART]
    names = [[name for name in group if name in fields] for group in user_record._GROUPS]
    masks = [
        float(sum(1 << group.index(name) for name in some))
        for group, some in zip(user_record._GROUPS, names, strict=True)
    ]
    numbers = [*first, *masks, *(float(fields[name]) for some in names for name in some)]
    texts = [part for name in TEXTS if name in fields for part in (name.encode(), fields[name])]
    return struct.pack(f"<{len(numbers)}d", *numbers) + (pack(texts) if texts else b"")
