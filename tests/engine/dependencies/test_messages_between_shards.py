"""Messages between shards: their carrier may die between any two commands, and may carry a message twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis as redis_py
from redis import Redis

from django_fairque.engine.model.ids import compute_bucket
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import task
from tests.servers import Server

SHARDS = 4
CONFIG = QueueConfig(shards=SHARDS)
MOST = 200
"""Commands, beyond which something goes round in circles."""


class Died(BaseException):
    """The end of a process; nothing in it may catch that."""


class Mortal(redis_py.Redis):
    """Ends its process before or after sending its ``last`` command."""

    sent = 0
    last = MOST
    sends_last = False

    def execute_command(self, *args: Any, **options: Any) -> Any:
        self.sent += 1
        if self.sent == self.last and not self.sends_last:
            raise Died
        reply = super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
        if self.sent == self.last:
            raise Died
        return reply


class Doubled(redis_py.Redis):
    """Sends each script call twice, as after a lost reply."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        if args[0] == "FCALL":
            super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
        return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]


def user_of(shard: int) -> str:
    return next(name for name in map("user-{}".format, range(1000)) if compute_bucket(name) % SHARDS == shard)


def work(queue: FairQueue) -> None:
    """A diamond over all shards, pushed and done by one that carries what it causes."""
    top = task(user_of(0))
    sides = [task(user_of(shard), depends_on=[top.task_id]) for shard in (1, 2)]
    bottom = task(user_of(3), depends_on=[side.task_id for side in sides])
    queue.push_graph([top, *sides, bottom], "run")
    drain(queue, "mortal")


def fail(queue: FairQueue) -> None:
    """A task that fails for good, and one on another shard that is canceled with it."""
    first = task(user_of(0), max_retries=0)
    queue.push_graph([first, task(user_of(1), depends_on=[first.task_id], on_dependency_failure="cancel")], "run")
    for lease in queue.pop_batch(5, "mortal"):
        queue.fail(lease, "no")
    queue.carry_messages()


def drain(queue: FairQueue, worker: str) -> None:
    for _ in range(4):
        for lease in queue.pop_batch(5, worker):
            queue.finish(lease)
        queue.carry_messages()


def outboxes(redis: Redis) -> int:
    return sum(redis.hlen(f"fq:{{default:{shard}}}:outbox") for shard in range(SHARDS))


@pytest.fixture
def queue(redis: Redis) -> FairQueue:
    """Return an empty queue, on a server that already has the functions."""
    made = FairQueue(redis, config=CONFIG)
    work(made)
    fail(made)
    redis.flushall()
    return FairQueue(redis, config=CONFIG)


def die_everywhere(server: Server, redis: Redis, story: Callable[[FairQueue], None], *, sends_last: bool) -> int:
    """Tell the story as often as it has commands, each time ending at the next one; how often it was ended."""
    for last in range(1, MOST):
        redis.flushall()
        with Mortal(unix_socket_path=server.socket) as client:
            client.last, client.sends_last = last, sends_last
            try:
                story(FairQueue(client, config=CONFIG))
            except Died:
                pass
            else:
                return last - 1
        check_recovery(FairQueue(redis, config=CONFIG), redis, story)
    raise AssertionError("the story has no end")


def check_recovery(queue: FairQueue, redis: Redis, story: Callable[[FairQueue], None]) -> None:
    queue.release_worker("mortal")
    queue.carry_messages()
    if story is work:
        drain(queue, "other")
    else:
        for lease in queue.pop_batch(5, "other"):
            queue.fail(lease, "no")
        queue.carry_messages()
    stats = queue.get_stats()
    known = stats.totals.get("pushed", 0)
    assert known in ((0, 4) if story is work else (0, 2)), "a graph is accepted as a whole or not at all"
    if story is work:
        assert (stats.states["finished"], stats.totals.get("finished", 0)) == (known, known)
    else:
        assert (stats.states["failed"], stats.states["canceled"]) == ((1, 1) if known else (0, 0))
    assert outboxes(redis) == 0
    assert queue.check_invariants() == []


@pytest.mark.parametrize("story", [work, fail])
@pytest.mark.parametrize("sends_last", [False, True], ids=["before", "after"])
def test_a_worker_delivering_messages_may_die_anywhere(
    queue: FairQueue, server: Server, redis: Redis, story: Callable[[FairQueue], None], sends_last: bool
) -> None:
    ends = die_everywhere(server, redis, story, sends_last=sends_last)
    print(f"{story.__name__}: ended at {ends} commands")  # noqa: T201
    assert ends > 10


def test_a_message_between_shards_sent_twice_has_one_effect(queue: FairQueue, server: Server, redis: Redis) -> None:
    with Doubled(unix_socket_path=server.socket) as client:
        work(FairQueue(client, config=CONFIG))
    stats = queue.get_stats()
    assert (stats.states["finished"], stats.totals["pushed"], stats.totals["finished"]) == (4, 4, 4)
    assert outboxes(redis) == 0
    assert queue.check_invariants() == []
