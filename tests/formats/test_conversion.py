"""Converting a queue's data keeps each user's tasks and the order in which users are served."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from django_fairque.engine.model.data_format import FORMAT
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.management.formats import convert_queue, queue_format
from tests.engine.conftest import NOW, task

if TYPE_CHECKING:
    from redis import Redis


def fill(queue: FairQueue) -> None:
    """Users that had turns, an organization, and newcomers that wait."""
    queue.user("m0").set_organization("acme", now=NOW)
    queue.user("m1").set_organization("acme", now=NOW)
    queue.push_batch([task(f"u{number}") for _ in range(3) for number in range(4)], now=NOW)
    for _ in range(6):
        lease = queue.pop("w", now=NOW)
        assert lease is not None
        queue.finish(lease, now=NOW)
    queue.push_batch([task(user) for user in ("n0", "n1", "m0", "m1", "n2") for _ in range(2)], now=NOW)


def served(queue: FairQueue) -> list[str]:
    found = []
    while lease := queue.pop("w", now=NOW):
        found.append(lease.user_id)
        queue.finish(lease, now=NOW)
    return found


def test_a_conversion_to_the_older_format_and_back_keeps_all_tasks(redis: Redis) -> None:
    queue = FairQueue(redis, config=QueueConfig(fair_by="tasks"))
    fill(queue)
    assert convert_queue(queue, 1) == FORMAT
    assert queue_format(queue) == 1
    ring = cast("list[tuple[bytes, float]]", redis.zrange("fq:{default:0}:ring", 0, -1, withscores=True))
    assert min(score for _, score in ring) >= 0
    assert convert_queue(queue, FORMAT) == 1
    assert queue.check_invariants() == []
    order = served(queue)
    assert len(order) == 16
    first_turns = {user: order.index(user) for user in order if user != "m1"}  # a second member of an organization
    assert max(first_turns.values()) <= 9  # each user had one turn before anybody had a third one
    assert queue.check_invariants() == []
