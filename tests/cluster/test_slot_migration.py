"""Slots that are moved from one primary to another while the queue is busy."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import pytest
from redis import Redis, ResponseError

from django_fairque.conf import RedisConfig
from django_fairque.conf.redis import aclose_client
from django_fairque.engine.model.errors import ServerRefusedError
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.queue.async_queue import AsyncFairQueue
from django_fairque.engine.queue.queue import FairQueue
from tests.cluster.conftest import SHARDS
from tests.cluster.six_nodes import slot_of
from tests.cluster.test_workers import is_done, users_of
from tests.conftest import MakeServer
from tests.engine.conftest import task
from tests.servers import Server
from tests.topologies import join
from tests.worker.conftest import WorkerProcess, eventually
from tests.worker.test_sentinel import Producer

RunWorker = Callable[..., AbstractContextManager[WorkerProcess]]
Nodes = list[tuple[int, Server]]

SHARD = 5


@pytest.fixture
def queue(redis: Any) -> Iterator[FairQueue]:
    made = FairQueue(redis, config=QueueConfig(shards=SHARDS, request_timeout=30))
    yield made
    assert made.check_invariants() == []


class Move:
    """A slot's way from its primary to another node, in the steps that a cluster's tools take."""

    def __init__(self, nodes: Nodes, slot: int, to: int | None = None) -> None:
        self.slot = slot
        self._nodes = dict(nodes)
        with nodes[0][1].client() as client:
            slots = client.execute_command("CLUSTER", "SLOTS")
        self.source = next(int(entry[2][1]) for entry in slots if entry[0] <= slot <= entry[1])
        self.target = to or next(port for port, _ in nodes if port != self.source)

    def _ask(self, port: int, *command: Any) -> Any:
        with self._nodes[port].client() as client:
            return client.execute_command(*command)

    def begin(self) -> None:
        source, target = (self._ask(port, "CLUSTER", "MYID") for port in (self.source, self.target))
        self._ask(self.target, "CLUSTER", "SETSLOT", self.slot, "IMPORTING", source)
        self._ask(self.source, "CLUSTER", "SETSLOT", self.slot, "MIGRATING", target)

    def carry(self, most: int) -> int:
        """Move at most ``most`` keys to the target. Returns how many keys were moved."""
        keys = self._ask(self.source, "CLUSTER", "GETKEYSINSLOT", self.slot, most)
        for key in keys:
            self._ask(self.source, "MIGRATE", "127.0.0.1", self.target, key, 0, 5000)
        return len(keys)

    def end(self) -> None:
        name = self._ask(self.target, "CLUSTER", "MYID")
        for port in (self.target, self.source, *self._nodes):
            self._ask(port, "CLUSTER", "SETSLOT", self.slot, "NODE", name)

    def finish(self) -> None:
        while self.carry(10):
            pass
        self.end()

    def at_once(self) -> None:
        self.begin()
        self.finish()


@contextmanager
def busy(queue: FairQueue, users: list[str]) -> Iterator[list[Producer]]:
    producers = [Producer(queue, users)]
    for producer in producers:
        producer.start()
    try:
        yield producers
    finally:
        for producer in producers:
            producer.stop()


@pytest.mark.slow
@pytest.mark.parametrize("carried", [0, 1, 5, 10_000])
def test_no_script_starts_on_a_slot_that_is_being_moved(queue: FairQueue, nodes: Nodes, carried: int, url: str) -> None:
    """Wherever the keys lie: what is refused has changed nothing, and is done when the slot has arrived."""
    (user,) = users_of(SHARD, 1)
    before = [queue.push(task(user)).task_id for _ in range(3)]
    impatient = queue.with_retry_timeout(0.3)
    move = Move(nodes, slot_of(SHARD))
    move.begin()
    move.carry(carried)
    refused: list[Callable[[], Any]] = [
        partial(impatient.push, task(user, task_id="t")),
        partial(impatient.cancel, before[0]),
        partial(impatient.settle, [], 5, worker="w"),
        impatient.sweep,
        impatient.pause,
        partial(impatient.forget_delivered, [before[0]]),  # declares no key that is not there
    ]
    for call in refused:
        with pytest.raises(ServerRefusedError, match="moving these keys to another server"):
            call()
    move.finish()
    assert queue.check_invariants() == []
    assert queue.get_stats().states["queued"] == 3
    assert queue.push(task(user, task_id="t")).status == "accepted"
    assert {lease.task_id for lease in queue.pop_batch(9, "w")} == {*before, "t"}


async def test_coroutines_wait_for_a_slot_that_is_being_moved(queue: FairQueue, nodes: Nodes, url: str) -> None:
    (user,) = users_of(SHARD, 1)
    queue.push(task(user))
    client = RedisConfig(url=url, cluster=True).create_async_redis_client()
    same = AsyncFairQueue(client, config=queue.config)
    await same.push(task(user))
    move = Move(nodes, slot_of(SHARD))
    move.begin()
    move.carry(5)
    rest = threading.Timer(0.3, move.finish)
    rest.start()
    assert (await same.push(task(user))).status == "accepted"
    rest.join()
    assert len(await same.pop_batch(9, "w")) == 3
    await aclose_client(client)


@pytest.mark.slow
def test_a_slot_is_moved_key_by_key_under_load(queue: FairQueue, nodes: Nodes, run_worker: RunWorker, url: str) -> None:
    users = [user for shard in range(SHARDS) for user in users_of(shard, 1)]
    with run_worker(url) as worker, busy(queue, users) as producers:
        worker.wait_ready()
        eventually(lambda: sum(len(producer.acknowledged) for producer in producers) > 100)
        for _ in range(2):
            Move(nodes, slot_of(SHARD)).at_once()
            there = len(producers[0].acknowledged)
            eventually(lambda there=there: len(producers[0].acknowledged) > there + 50)  # type: ignore[misc]
        for producer in producers:
            producer.stop()
        eventually(partial(is_done, queue), 60)
        assert worker.stop() == 0
    ids = producers[0].acknowledged
    assert {queue.get_task(task_id).state.value for task_id in ids} == {"finished"}
    print(f"{len(ids)} tasks, none lost; longest pause {producers[0].longest_pause:.2f} s")  # noqa: T201


def knows_whole_moves(client: Redis) -> bool:
    try:
        client.execute_command("CLUSTER", "GETSLOTMIGRATIONS")
    except ResponseError:
        return False
    return True


@pytest.mark.slow
def test_slots_are_moved_as_a_whole_under_load(queue: FairQueue, nodes: Nodes, run_worker: RunWorker, url: str) -> None:
    """As Valkey does since 9."""
    move = Move(nodes, slot_of(SHARD))
    source, target = dict(nodes)[move.source], dict(nodes)[move.target]
    with source.client() as client, target.client() as other:
        name = other.execute_command("CLUSTER", "MYID")
        if not knows_whole_moves(client):
            pytest.skip("this server moves slots key by key only")
        users = [user for shard in range(SHARDS) for user in users_of(shard, 1)]
        with run_worker(url) as worker, busy(queue, users) as producers:
            worker.wait_ready()
            eventually(lambda: len(producers[0].acknowledged) > 100)
            client.execute_command("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", move.slot, move.slot, "NODE", name)
            eventually(lambda: other.execute_command("CLUSTER", "COUNTKEYSINSLOT", move.slot) > 0)
            eventually(lambda: Move(nodes, move.slot).source == move.target)
            there = len(producers[0].acknowledged)
            eventually(lambda: len(producers[0].acknowledged) > there + 50)
            for producer in producers:
                producer.stop()
            eventually(partial(is_done, queue), 60)
            assert worker.stop() == 0
    ids = producers[0].acknowledged
    assert {queue.get_task(task_id).state.value for task_id in ids} == {"finished"}
    print(f"{len(ids)} tasks, none lost; longest pause {producers[0].longest_pause:.2f} s")  # noqa: T201


@pytest.mark.slow
@pytest.mark.parametrize("by", ["functions", "scripts"])
def test_a_new_node_gets_the_scripts_of_calls(queue: FairQueue, nodes: Nodes, make_server: MakeServer, by: str) -> None:
    """A node that has just met the cluster knows no function and no script of ours."""
    (user,) = users_of(SHARD, 1)
    if by == "scripts":
        queue._transport.as_functions = False
    queue.push(task(user))
    port, server = join(make_server, nodes[0][0], "--cluster-allow-replica-migration", "no")
    everyone = [*nodes, (port, server)]
    try:
        Move(everyone, slot_of(SHARD), port).at_once()
        assert queue.push(task(user)).status == "accepted"
        assert len(queue.pop_batch(5, "w")) == 2
        assert queue.check_invariants() == []
    finally:
        Move(everyone, slot_of(SHARD), nodes[0][0]).at_once()
        with server.client() as client:
            name = client.execute_command("CLUSTER", "MYID")
        for _, node in nodes:
            with node.client() as client:
                client.execute_command("CLUSTER", "FORGET", name)
