"""Relaying what waits in an outbox, long after its transaction: for workers, and for people who don't wait for those."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_fairque.conf.queues import get_queue
from django_fairque.outbox import relay as outbox

from . import lifecycle

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from django_fairque.engine.queue.queue import FairQueue


def relay(
    database: str,
    users: Collection[str] | None = None,
    *,
    minimum_age: float = 0.0,
    queue_of: Callable[[str], FairQueue] = get_queue,
) -> outbox.Relayed:
    """As `django_fairque.outbox.relay.relay`; receivers hear of the tasks that their queues have now."""
    relayed = outbox.relay(database, users, minimum_age=minimum_age, queue_of=queue_of)
    for queue, tasks, results in relayed.pushed:
        lifecycle.send_task_pushed(queue, tasks, results)
    return relayed
