"""Fingerprints of the keys that producers sign with, in a set on each shard.

If a task has a wrong signature, a worker finds out from these fingerprints whether a producer signs with another key. A
producer writes its fingerprint only before its first push to a shard.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from django_fairque.engine.model.errors import NotPermittedError
from django_fairque.engine.model.signature import fingerprint
from django_fairque.engine.scripting.operations import Operation, Read

if TYPE_CHECKING:
    from django_fairque.engine.scripting.commands import Commands

SIGNING_KEYS = "signing_keys"
"""The name of the key of the set of fingerprints."""


def write_fingerprint(commands: Commands) -> Operation[None]:
    signing_key = commands.config.signing_key
    key = signing_key.read()
    if key is not None and signing_key.is_producer:
        with suppress(NotPermittedError):  # the server's access rules may not permit this set yet
            yield Read([("SADD", commands.keys(SIGNING_KEYS), fingerprint(key))])
    commands.has_written_fingerprint = True
