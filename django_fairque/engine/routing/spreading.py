"""How many shards a queue has is written down with its first tasks: everybody must agree, or users would be in two places."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_fairque.engine.errors import ConfigurationError
from django_fairque.engine.steps import Read

if TYPE_CHECKING:
    from django_fairque.engine.shards import Shards
    from django_fairque.engine.steps import Steps


def known(shards: Shards) -> Steps[int]:
    """On how many shards the queue lies, whatever is configured."""
    (written,) = yield Read([("GET", shards.home.keys("shards"))])
    return int(written or 1)


def check(shards: Shards) -> Steps[None]:
    """Raise `ConfigurationError` when the queue lies on another number of shards than is configured."""
    configured = shards.config.shards
    (written,) = yield Read([("GET", shards.home.keys("shards"))])
    if written is None and configured > 1:
        written = yield shards.home.call("spread", [configured, 0], None)
    known = int(written or 1)
    if known != configured:
        raise ConfigurationError(
            f"queue {shards.name!r} lies on {known} shards and is configured to lie on {configured}: its users "
            f"would not be found any more. Set SHARDS back, or let the queue drain, stop its workers and run "
            f"'manage.py fairque_reshard --queue {shards.name} --shards {configured}'"
        )
