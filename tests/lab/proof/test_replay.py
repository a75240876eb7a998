"""One reply in ten is lost, and the real transport repeats its call: nothing happens twice, nothing is reported twice.

The oracle is a twin: the same history on a second database, over a connection that loses nothing. Every answer must be the
same, and in the end every byte that is stored.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import redis.exceptions
from redis import Redis

from django_fairque.engine.model.lease import Lease
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.model.outcome import Settled
from django_fairque.engine.queue.queue import FairQueue
from tests.lab.proof.budget import SEED, times
from tests.lab.proof.random_history import Walk
from tests.lab.proof.server_states import States
from tests.servers import Server

CALLS = 20_000
LOST = 0.1
ONE_HISTORY = 2_000
JUDGED_BY_EFFECT = {"release_worker", "sweep", "sweep_much_later", "forget_delivered", "cleanup", "fire", "schedule"}
"""Operations that return the amount of their work: a repetition returns none, and no caller uses this value."""
BOUNDED = {"sweep", "sweep_much_later", "fire"}
"""Operations that do a limited part of the work: a repetition does the next part, so both queues also do the rest."""


class LosingClient:
    """Sends, and then now and then says that the connection broke before the reply came."""

    def __init__(self, client: Redis, seed: int) -> None:
        self.client = client
        self.random = random.Random(seed)
        self.calls = self.lost = 0

    def execute_command(self, *args: Any, **options: Any) -> Any:
        reply = self.client.execute_command(*args, **options)
        if args[0] == "FCALL":
            self.calls += 1
            if self.random.random() < LOST:
                self.lost += 1
                raise redis.exceptions.ConnectionError("the reply was lost on purpose")
        return reply

    def pipeline(self, *args: Any, **options: Any) -> Any:
        return self.client.pipeline(*args, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)


def finish_maintenance(queue: FairQueue, now: float) -> None:
    """Do all maintenance that is due."""
    while any(not fired.is_refused for fired in queue.schedules.fire_due(now=now)):
        pass
    while (swept := queue.sweep(now=now)).more or swept.promoted:
        pass


def shown(result: Any) -> Any:
    """Return the comparable part of an answer: of a lease, the fields that a worker uses."""
    if isinstance(result, list):
        return [shown(part) for part in result]
    if isinstance(result, Settled):
        return result.statuses, shown(result.leases), result.now
    if isinstance(result, Lease):
        return [value for i, value in enumerate(result._values) if i != 3]
    return result


@pytest.mark.slow
def test_a_repeated_call_has_one_effect_and_the_first_reply(
    own_server: Server, redis: Redis, states: States, config: QueueConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_fairque.engine.transport.connection.time.sleep", lambda seconds: None)
    config = config.model_copy(update={"sweep_batch_size": 1000})  # no call of another kind meets the limit
    losing, calls, history = LosingClient(redis, SEED), 0, 0
    flaky, plain = FairQueue(losing, config=config), FairQueue(redis, config=config)
    with own_server.client(db=1) as client:
        sure = FairQueue(client, config=config)
        while calls + losing.calls < times(CALLS):
            redis.flushall()
            calls, losing.calls, history = calls + losing.calls, 0, history + 1
            walk = Walk(redis, SEED * 1_000_003 + history)
            walk.missed = "skip"
            kinds = sorted(walk.kinds.keys() - {"repair"})
            while losing.calls < ONE_HISTORY:
                operation = walk.draw(*kinds)
                if operation is None:
                    continue
                first = walk.perform(operation, flaky)
                second = walk.perform_again(operation, sure)
                if operation.name in BOUNDED:
                    for queue in (plain, sure):
                        finish_maintenance(queue, walk.now)
                if operation.name not in JUDGED_BY_EFFECT:
                    assert shown(first) == shown(second), f"seed {SEED}, history {history}: {operation.name}"
            assert states.digest(0) == states.digest(1), f"seed {SEED}, history {history}"
            assert flaky.check_invariants() == []
    assert losing.lost > LOST * 0.8 * times(CALLS)
