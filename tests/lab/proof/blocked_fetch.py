"""The fetch of a worker that has asked before there was anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_fairque.engine.leasing import lease_ops as leasing
from django_fairque.engine.leasing.lease_ops import Fetch
from django_fairque.engine.scripting.operations import ScriptCall

if TYPE_CHECKING:
    from django_fairque.engine.model.outcome import Settled
    from django_fairque.engine.queue.queue import FairQueue


def fetched_ahead(queue: FairQueue, worker: str, now: float, lease: float, *, again: bool = False) -> Settled:
    """As `engine.wait` makes it; ``again``: as it is repeated."""
    steps = leasing.settle_on_shard(queue._shards.home, [], Fetch(2, worker, lease=lease), now, has_waited=True)
    call = next(steps)
    assert isinstance(call, ScriptCall)
    try:
        steps.send(queue._transport.send(leasing.repeated_call(call) if again else call))
    except StopIteration as stop:
        settled: Settled = stop.value
        return settled
    raise AssertionError("a fetch is one call")
