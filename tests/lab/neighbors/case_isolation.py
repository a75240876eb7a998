"""Tasks that leave state behind wherever a task can."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django_fairque.engine.model.records import TaskState
from django_fairque.engine.model.task import Task
from tests.worker.conftest import ROOT

from .cases import Felt, case

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .world import World

CARRIERS = ROOT / "tests" / "worker" / "project" / "carriers.py"


@case("A1", neighbor="sets a context variable and leaves it set", bound="unaffected: 0 leaks in 8,000 tasks")
def sets_context_variables(world: World) -> Felt:
    return _alternate(world, ("leave", "aleave", "leave_batch", "aleave_batch"), 2_000)


@case(
    "A2",
    neighbor="changes language, time zone, decimal context, Sentry scope, session, autocommit, … and leaves it so",
    bound="unaffected: 0 leaks in 800 tasks with CLOSE_DATABASE_CONNECTIONS",
)
def leaves_state_everywhere(world: World) -> Felt:
    return _alternate(world, ("carry", "acarry", "carry_batch", "acarry_batch"), 200)


def _alternate(world: World, names: Sequence[str], count: int) -> Felt:
    """Push tasks of each name for acme (the neighbor) and bob by turns, and count acme's data in other users' tasks."""
    world.queue.pause()
    results = world.queue.push_batch(
        [
            Task.create(
                user,
                3,
                {"args": [[user, number]] if "batch" in name else [user, number], "kwargs": {}},
                name=name,
            )
            for number in range(count)
            for user in [("acme", "bob")[number % 2]]
            for name in names
        ]
    )
    world.start_worker(
        TEST_MORE_TASKS=str(CARRIERS),
        TEST_DATABASE=str(world.directory / "db.sqlite3"),
        TEST_CONN_MAX_AGE="600",
        FAIRQUE_WORKER__CLOSE_DATABASE_CONNECTIONS="true",
    )
    world.queue.resume()
    world.wait_for([result.task_id for result in results], TaskState.FINISHED, 60)
    leaks: Any = world.redis.hgetall("tests:leaks")
    total = sum(map(int, leaks.values()))
    names_of_leaks = ", ".join(sorted(key.decode() for key in leaks))
    return Felt(
        wrong_ends=total,
        within_bound=total == 0,
        details=f"{total} leaks in {len(results)} tasks" + (f": {names_of_leaks}" if total else ""),
    )
