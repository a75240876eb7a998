"""An error at every ``redis.call`` of every script, in states that can happen."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from functools import partial

import pytest
from redis import Redis

from django_fairque.engine.model.errors import LuaScriptError
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.engine.scripting import scripts
from tests.lab.proof.budget import SEED, logger, times
from tests.lab.proof.call_sites import FailingClient, all_places
from tests.lab.proof.failing_calls import START, Breaking
from tests.lab.proof.random_history import EXPECTED, NOW, Walk
from tests.lab.proof.scenarios import NOT_REACHED, SCENARIOS, Scenario, Scene
from tests.lab.proof.server_states import States

STATES = 240
LEFT_TO_SCENARIOS = {
    "ack_messages",
    "act",
    "declare",
    "dependency_ended",
    "incident",
    "limit",
    "set_shard_count",
    "undo",
    "watch",
}
"""Scripts that these walks don't call: for several shards, declared schedules, acts, incidents and limits by key."""
MOST_UNREACHED = 210
"""Of 414 places: those that these histories don't reach. The scenarios reach all."""
EACH = 6
"""Operations that are broken in each state."""


def rarest(done: Counter[str], walk: Walk) -> list[str]:
    """The four kinds of operations that were broken least often."""
    return sorted(walk.kinds, key=lambda kind: done[kind])[:4]


def test_a_graph_pushed_again_after_an_error_is_whole(redis: Redis, config: QueueConfig) -> None:
    client = FailingClient(redis)
    queue = FairQueue(client, config=config)
    first = Task.create("a", 3, "first", task_id="first")
    second = Task.create("a", 3, "second", task_id="second", depends_on=["first"])
    client.begin()
    queue.push_graph([first, second], now=NOW)
    for fail_at in range(1, len(client.seen) + 1):
        redis.flushdb()
        client.begin(fail_at)
        with pytest.raises(LuaScriptError, match="injected"):
            queue.push_graph([first, second], now=NOW)
        client.repeat()
        assert all(repair.is_fixed for repair in queue.repair(now=NOW))
        assert [(task.state.value, task.payload) for task in map(queue.get_task, ["first", "second"])] == [
            ("queued", "first"),
            ("deferred", "second"),
        ]


@pytest.mark.slow
def test_a_script_that_is_interrupted_anywhere_loses_no_task(redis: Redis, states: States, config: QueueConfig) -> None:
    breaking = Breaking(redis, states, config)
    plain = FairQueue(redis, config=config)
    done: Counter[str] = Counter()
    for number in range(times(STATES)):
        redis.flushdb()
        walk = Walk(redis, SEED * 1_000_003 + number)
        walk.go(walk.random.randint(0, 40), plain)
        for _ in range(EACH):
            drawn = (walk.draw(*rarest(done, walk)) for _ in range(8))
            if operation := next(filter(None, drawn), None):
                states.keep(START)
                try:
                    breaking.everywhere(partial(walk.perform, operation), operation.act, walk.now)
                except AssertionError as error:
                    raise AssertionError(f"seed {SEED}, state {number}: {operation.name}: {error}") from error
                done[operation.name] += 1
    untouched = set(scripts.names()) - LEFT_TO_SCENARIOS - {name for name, _ in breaking.broken}
    assert len(untouched) <= 2, untouched
    never = all_places() - NOT_REACHED - {place for _, place in breaking.broken}
    assert len(never) <= MOST_UNREACHED, sorted(never)
    figures: dict[str, object] = {"operations": done.total(), "injections": breaking.broken.total()}
    figures["states"] = breaking.distinct
    figures["left to scenarios"] = sorted(never)
    logger.info("%s", figures)


def prepare_scene(scenario: Scenario, redis: Redis, config: QueueConfig) -> Scene:
    """Return an empty database with the data that the scenario needs."""
    redis.flushdb()
    scene = Scene(redis, config.model_copy(update={"shards": scenario.shards}))
    scene.prepare(scenario)
    return scene


def end_of(scene: Scene, queue: FairQueue) -> object:
    """A refusal is an end too."""
    try:
        return scene.act(queue)
    except EXPECTED as error:
        return error


@pytest.mark.thorough
def test_every_write_call_of_the_scripts_is_reached_by_a_scenario(redis: Redis, config: QueueConfig) -> None:
    client = FailingClient(redis)
    reached: set[str] = set()
    for scenario in SCENARIOS:
        scene = prepare_scene(scenario, redis, config)
        client.begin()
        end_of(scene, FairQueue(client, config=scene.config))
        reached |= {place for _, place in client.seen}
    never = all_places() - reached
    assert never == NOT_REACHED, f"write a scenario (scenarios.py) that comes to {sorted(never)}"
    logger.info("%s", {"scenarios": len(SCENARIOS), "places": len(all_places())})


@pytest.mark.thorough
@pytest.mark.parametrize(
    "scenario",
    # A sample of them; the others are slow tests.
    [pytest.param(scenario, marks=[pytest.mark.slow] * (number % 5 > 0)) for number, scenario in enumerate(SCENARIOS)],
    ids=str,
)
def test_a_scenario_that_is_interrupted_anywhere_loses_no_task(
    redis: Redis, states: States, config: QueueConfig, scenario: Scenario
) -> None:
    scene = prepare_scene(scenario, redis, config)
    breaking = Breaking(redis, states, scene.config)
    states.keep(START)
    breaking.everywhere(
        lambda queue: end_of(scene, queue),
        scene.act,
        scene.now,
        completes=scenario.completes,
        is_exact=scenario.is_exact,
        order=scene.order,
    )
    logger.info("%s", {"scenario": str(scenario), "injections": breaking.broken.total(), "states": breaking.distinct})


def test_a_resharding_repeated_after_an_error_is_complete(redis: Redis, config: QueueConfig) -> None:
    """Nobody may work on the queue before: it says so itself, by the number that is written down."""
    client = FailingClient(redis)

    def prepare() -> FairQueue:
        redis.flushdb()
        queue = FairQueue(redis, config=config)
        queue.user("a").set_weight(2, now=NOW)
        queue.push(Task.create("a", 3, "x", task_id="t"), now=NOW)
        for lease in queue.pop_batch(1, "w", now=NOW):
            queue.finish(lease, now=NOW)
        return FairQueue(client, config=config.model_copy(update={"shards": 2}))

    client.begin()
    prepare().reshard(2, now=NOW)
    for fail_at in range(1, len(client.seen) + 1):
        queue = prepare()
        client.begin(fail_at)
        with suppress(LuaScriptError):  # the call does not raise every injected error
            queue.reshard(2, now=NOW)
        assert client.fail_at == 0, "no error was injected"
        queue.reshard(2, now=NOW)
        assert all(repair.is_fixed for repair in queue.repair(now=NOW))
        assert queue.push(Task.create("a", 3, "y"), now=NOW).accepted
        assert queue.user_stats(["a"], now=NOW)[0].weight == 2
        assert queue.check_invariants() == []
