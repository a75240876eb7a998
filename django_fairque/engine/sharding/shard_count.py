"""How many shards a queue has is written down with its first tasks: everybody must agree, or users would be in two places.

What counts is written on the first shard. The others have copies, for those who begin while its server is away.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from django_fairque.engine.model.errors import ConfigurationError, FairQueueError
from django_fairque.engine.scripting.operations import Read

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_fairque.engine.scripting.commands import Commands
    from django_fairque.engine.scripting.operations import Steps
    from django_fairque.engine.sharding.shards import Shards


def known(shards: Shards) -> Steps[int]:
    """On how many shards the queue lies, whatever is configured."""
    (written,) = yield Read([("GET", shards.home.keys("shards"))])
    return int(written or 1)


def check(shards: Shards) -> Steps[bool]:
    """Raise `ConfigurationError` when the queue lies on another number of shards than is configured.

    Returns whether it is known: not if the first shard can't be reached and the others have no copy.
    """
    configured = shards.config.shards
    if configured == 1:
        lies_on = yield from known(shards)
    else:
        living = tuple(shards)
        found = yield Read([("GET", shard.keys("shards")) for shard in living])
        written = next((int(each) for each in found if each is not None), None)
        if shards.is_present(shards.home) and found[0] is None:
            written = int((yield shards.home.call("set_shard_count", [configured, 0], None)))
        if written is None:
            return False
        lies_on = written
        if lies_on == configured:
            without = [shard for shard, each in zip(living, found, strict=True) if each is None]
            yield from _copy(lies_on, [shard for shard in without if shard is not shards.home])
    if lies_on != configured:
        raise ConfigurationError(
            f"queue {shards.name!r} lies on {lies_on} shards and is configured to lie on {configured}: its users "
            f"would not be found any more. Set SHARDS back, or let the queue drain, stop its workers and run "
            f"'manage.py fairque_reshard --queue {shards.name} --shards {configured}'"
        )
    return True


def write(shards: Shards) -> Steps[None]:
    """Write down that this is their number: first where it counts."""
    yield shards.home.call("set_shard_count", [len(shards), 1], None)
    yield from _copy(len(shards), shards.all[1:])


def forget_copies(shards: Shards) -> Steps[None]:
    """Before the number changes."""
    for shard in shards.all[1:]:
        yield Read([("DEL", shard.keys("shards"))])


def _copy(number: int, shards: Sequence[Commands]) -> Steps[None]:
    for shard in shards:
        with suppress(FairQueueError):  # who may only look, or meets one that is away now, leaves it to others
            yield shard.call("set_shard_count", [number, 1], None)
