"""Fingerprints of the keys that producers sign with, in a set on each shard.

By them a worker knows whether a task with a wrong signature may come from a producer with another key. A producer writes its
fingerprint before its first push to a shard, which costs later pushes nothing.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from django_fairque.engine.model.errors import NotPermittedError
from django_fairque.engine.model.signature import fingerprint
from django_fairque.engine.scripting.operations import Operation, Read

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.engine.scripting.commands import Commands
    from django_fairque.engine.sharding.shards import Shards

SIGNING_KEYS = "signing_keys"
"""The key of the set."""


def write_fingerprint(commands: Commands) -> Operation[None]:
    signing_key = commands.config.signing_key
    key = signing_key.read()
    if key is not None and signing_key.is_producer:
        with suppress(NotPermittedError):  # rules for users of the server may be older than this set
            yield Read([("SADD", commands.keys(SIGNING_KEYS), fingerprint(key))])
    commands.has_written_fingerprint = True


def used_keys(queue: FairQueue) -> set[str]:
    """Return the fingerprints of the keys with which producers of the queue have signed."""
    return queue._read_all_shards(_read)  # noqa: SLF001 - as the queue's own methods do


def replace_used_keys(queue: FairQueue, fingerprints: Iterable[str]) -> None:
    """Let these be the only fingerprints. A signature by another key is then a forgery."""
    queue._run(_replace(queue._shards, sorted(fingerprints)))  # noqa: SLF001


def _read(shards: Shards) -> Operation[set[str]]:
    replies = yield Read([("SMEMBERS", shard.keys(SIGNING_KEYS)) for shard in shards])
    return {each.decode(errors="replace") for reply in replies for each in reply}


def _replace(shards: Shards, fingerprints: list[str]) -> Operation[None]:
    for shard in shards:
        key = shard.keys(SIGNING_KEYS)
        yield Read([("DEL", key), *([("SADD", key, *fingerprints)] if fingerprints else [])])
