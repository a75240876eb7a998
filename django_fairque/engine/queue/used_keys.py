"""Reading and replacing the fingerprints that producers have written (`django_fairque.engine.scripting.signing_keys`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_fairque.engine.scripting.operations import Operation, Read
from django_fairque.engine.scripting.signing_keys import SIGNING_KEYS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.engine.sharding.shards import Shards


def used_keys(queue: FairQueue) -> set[str]:
    """Return the fingerprints of the keys with which producers of the queue have signed."""
    return queue._read_all_shards(_read)  # noqa: SLF001 - as the queue's own methods do


def replace_used_keys(queue: FairQueue, fingerprints: Iterable[str]) -> None:
    """Replace the recorded fingerprints. A signature by another key then counts as a forgery."""
    queue._run(_replace(queue._shards, sorted(fingerprints)))  # noqa: SLF001


def _read(shards: Shards) -> Operation[set[str]]:
    replies = yield Read([("SMEMBERS", shard.keys(SIGNING_KEYS)) for shard in shards])
    return {key.decode(errors="replace") for reply in replies for key in reply}


def _replace(shards: Shards, fingerprints: list[str]) -> Operation[None]:
    for shard in shards:
        key = shard.keys(SIGNING_KEYS)
        yield Read([("DEL", key), *([("SADD", key, *fingerprints)] if fingerprints else [])])
