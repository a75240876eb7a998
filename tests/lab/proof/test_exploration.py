"""Two users, three tasks, two workers: all orders of events, as far as there is time, against the oracle."""

from __future__ import annotations

import random
from typing import Any

import pytest
from redis import Redis

from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.engine.scripting import scripts
from tests.engine.conftest import task
from tests.engine.oracle import Oracle
from tests.lab.proof.budget import SEED, logger, times
from tests.lab.proof.state_exploration import (
    DELIVERIES,
    DUMP,
    LEASE,
    OUTLINE,
    RESTORE,
    TASKS,
    TICK,
    Moves,
    State,
    after,
    answered,
    command_of,
)

TRANSITIONS = 20_000
"""The number of transitions for each policy of the dependent task."""


class Explorer:
    def __init__(self, redis: Redis, config: QueueConfig, policy: str) -> None:
        self.redis = redis
        self.queue = FairQueue(redis, config=config)
        self.queue.push(task())  # before its first push a producer writes the fingerprint of its key
        redis.function_load(scripts.functions(), replace=True)
        self.moves = Moves(self.queue._shards, policy)
        self.dump, self.restore, self.outline = (redis.script_load(text) for text in (DUMP, RESTORE, OUTLINE))
        self.known: set[Any] = set()
        self.transitions = self.checked = self.replays = 0

    def expand(self, state: State) -> list[State]:
        """Everything that can happen next; those states among them that are new."""
        moves = list(self.moves.of(state))
        steps = [move.steps() for move in moves]
        commands = [command_of(next(step)) for step in steps]
        with self.redis.pipeline(transaction=False) as pipe:
            for command in [*commands, *([state.last] if state.last else [])]:
                pipe.execute_command("EVALSHA", self.restore, 0, *state.dumps)
                pipe.execute_command(*command, NEVER_DECODE=True)
                pipe.execute_command("EVALSHA", self.outline, 1, TASKS)
                pipe.execute_command("EVALSHA", self.dump, 0)
            replies = pipe.execute()
        found = []
        for i, move in enumerate(moves):
            reply, (outline, states), dumps = replies[4 * i + 1 : 4 * i + 4]
            new = after(state, move, dumps)
            self.transitions += 1
            try:
                move.apply(new, answered(steps[i], reply))
                self.agree(new, states)
            except AssertionError as error:
                raise AssertionError(f"after {' > '.join(new.path)}: {error}") from error
            new.last, new.reply, new.outline = commands[i], reply, outline
            found.append(new)
        if state.last:
            self.replayed(state, *replies[-3:-1])
        later = after(state, type(moves[0])("tick", moves[0].steps, moves[0].apply), state.dumps)
        later.now, later.outline = state.now + TICK, state.outline
        return [new for new in [*found, later] if self.is_new(new)]

    def agree(self, new: State, states: list[bytes]) -> None:
        expected = [new.oracle.tasks[name].state if name in new.oracle.tasks else "" for name in ("t0", "t1", "t2")]
        assert [state.decode() for state in states] == expected

    def replayed(self, state: State, reply: Any, outline: list[Any]) -> None:
        self.transitions += 1
        self.replays += 1
        path = " > ".join(state.path)
        assert outline[0] == state.outline, f"the last of {path}, repeated, does more"
        tells_its_effect = state.path[-1].startswith(("sweep", "crash"))
        if isinstance(reply, list) and not tells_its_effect:
            first = 2 if state.path[-1].startswith("push") else 4  # before it: moments, virtual time and what is new
            assert reply[first:] == state.reply[first:], f"the last of {path}, repeated, answers otherwise"

    def is_new(self, state: State) -> bool:
        tasks = state.oracle.tasks
        leases = tuple(
            sorted((lease.task_id, lease.token == tasks[lease.task_id].token, lease.worker) for lease in state.leases)
        )
        key = (state.outline, state.now, leases)
        if key in self.known:
            return False
        self.known.add(key)
        return True

    def check(self, state: State) -> None:
        self.redis.execute_command("EVALSHA", self.restore, 0, *state.dumps)
        assert self.queue.check_invariants() == [], " > ".join(state.path)
        self.checked += 1


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["wait", "cancel", "run"])
def test_every_order_of_events_keeps_the_invariants(redis: Redis, config: QueueConfig, policy: str) -> None:
    config = type(config)(max_deliveries=DELIVERIES, retry_jitter=0, lease_seconds=LEASE)
    explorer = Explorer(redis, config, policy)
    redis.flushdb()
    frontier = [State([], Oracle(LEASE, DELIVERIES))]
    draw, first = random.Random(SEED), 0
    while first < len(frontier) and explorer.transitions < times(TRANSITIONS):
        # Breadth first, and every other time from anywhere: what is near is complete, what is far is seen too.
        if draw.random() < 0.5:
            other = draw.randrange(first, len(frontier))
            frontier[first], frontier[other] = frontier[other], frontier[first]
        for new in explorer.expand(frontier[first]):
            if new.path[-1] != "tick":
                explorer.check(new)
            frontier.append(new)
        frontier[first] = None  # type: ignore[call-overload]  # expanded: its dumps are not needed any more
        first += 1
    figures: dict[str, object] = {}
    figures["transitions"] = explorer.transitions
    figures["states"] = explorer.checked
    figures["repetitions"] = explorer.replays
    logger.info("%s", figures)
    assert first == len(frontier) or explorer.transitions >= times(TRANSITIONS)
