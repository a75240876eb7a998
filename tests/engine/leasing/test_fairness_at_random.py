"""Users that come and go at random, with tasks of any length: two who have work are never far apart."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis import Redis

from tests.engine.sharing import World

STEPS = 300
A_QUARTER = 0.25
"""Part of a task: service through a list is deducted in steps of this size."""
seeds = given(seed=st.integers(0, 2**32))
quietly = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
runs = settings(quietly, max_examples=2)
more = [pytest.param(kind, part, marks=pytest.mark.slow) for kind in ("time", "tasks") for part in (1, 2, 3)]
by_either = pytest.mark.parametrize(("fair_by", "part"), [("time", 0), ("tasks", 0), *more])


@by_either
@pytest.mark.parametrize("shards", [1, 3])
@seeds
@runs
def test_users_with_work_differ_by_at_most_a_task(
    redis: Redis, fair_by: str, part: int, shards: int, seed: int
) -> None:
    world = World(redis, seed, fair_by, shards)
    for _ in world.steps(STEPS):
        if world.random.random() < 0.02:
            world.give_back()
        world.serve()
        world.shares.look(world.users, world.now)
    assert world.worst() <= 1


@by_either
@seeds
@runs
def test_a_worker_for_a_list_of_users_costs_no_user_a_turn(redis: Redis, fair_by: str, part: int, seed: int) -> None:
    world = World(redis, seed, fair_by)
    world.run_with_workers_for(world.users[0], STEPS)
    assert world.worst(world.without(world.users[0])) <= 1
    assert world.worst(ahead=A_QUARTER) <= 1


@by_either
@seeds
@runs
def test_users_of_a_list_are_served_equally_by_its_workers(redis: Redis, fair_by: str, part: int, seed: int) -> None:
    world = World(redis, seed, fair_by)
    world.run_for(world.users[:3], STEPS)
    assert world.worst(ahead=A_QUARTER) <= 1


@pytest.mark.thorough
@by_either
@seeds
@runs
def test_users_who_lose_their_dedicated_workers_are_served_soon(
    redis: Redis, fair_by: str, part: int, seed: int
) -> None:
    world = World(redis, seed, fair_by)
    for step in world.steps(2 * STEPS):
        if step < STEPS:
            world.serve(world.users[:2])
        else:
            world.serve()
            world.shares.look(world.users, world.now)
    assert world.worst(ahead=A_QUARTER) <= 1
