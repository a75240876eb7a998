"""A server that dies while it writes its file: what is loaded again is some moment between two calls, never half of one."""

from __future__ import annotations

import random
from typing import Any

import pytest
from redis import Redis

from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.engine.scripting.operations import Request, ScriptCall
from django_fairque.engine.transport.connection import Transport
from tests.lab.proof.budget import SEED, times
from tests.lab.proof.random_history import Walk
from tests.lab.proof.server_states import States
from tests.servers import Server

OPERATIONS = 600
RESTARTS = 200
HOUR = 3600
"""Keys that expire sooner are not compared, because they may expire between the call and the restart."""
ON_DISK = ("--appendonly", "yes", "--appendfsync", "no", "--auto-aof-rewrite-percentage", "0", "--save", "")


class Watching(Transport):
    """Notes the state after each script call."""

    def __init__(self, redis: Redis, states: States) -> None:
        super().__init__(redis, retry_seconds=10)
        self.states = states
        self.moments = {states.digest(lasting=HOUR)}

    def send(self, request: Request, seconds: float | None = None, *, in_doubt: bool = False) -> Any:
        reply = super().send(request, seconds, in_doubt=in_doubt)
        if isinstance(request, ScriptCall):
            self.moments.add(self.states.digest(lasting=HOUR))
        return reply


@pytest.mark.slow
def test_a_truncated_persistence_file_is_a_state_between_two_calls(config: QueueConfig) -> None:
    draw = random.Random(SEED)
    with Server(*ON_DISK) as server:
        with server.client() as redis:
            states, queue, walk = States(redis), FairQueue(redis, config=config), Walk(redis, SEED)
            kinds = sorted(walk.kinds.keys() - {"repair"})  # its damage is no call of the queue's
            queue._transport = watching = Watching(redis, states)
            for _ in range(OPERATIONS):
                if operation := walk.draw(*kinds):
                    walk.perform(operation, queue)
            now, moments = walk.now, watching.moments
        server.stop()
        (file,) = server.directory.glob("appendonlydir/*.incr.aof")
        whole = file.read_bytes()
        for number in range(times(RESTARTS)):
            size = draw.randrange(len(whole) + 1)
            file.write_bytes(whole[:size])
            server.start()
            with server.client() as redis:
                where = f"seed {SEED}, restart {number}: cut at byte {size} of {len(whole)}"
                assert States(redis).digest(lasting=HOUR) in moments, where
                queue = FairQueue(redis, config=config)
                assert queue.check_invariants() == [], where
                queue.pop_batch(3, "w", now=now)
                assert queue.check_invariants() == [], where
            server.kill()
