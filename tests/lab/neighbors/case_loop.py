"""Tasks that end, block or disturb the event loop on which the coroutines of all users run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_fairque.engine.model.records import TaskState
from tests.worker.conftest import eventually

from .cases import Felt, case, percentile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .world import World

USERS = 6
HARD_LIMIT = "FAIRQUE_WORKER__HARD_TIMEOUT_GRACE"


@case("B1", neighbor="calls sys.exit() in a gathered coroutine", bound="unaffected")
def exits_in_a_gathered_coroutine(world: World) -> Felt:
    return _with_neighbor(world, "exits_in_gather")


@case("B1", neighbor="calls loop.stop()", bound="unaffected")
def stops_the_event_loop(world: World) -> Felt:
    return _with_neighbor(world, "stops_loop")


@case("B1", neighbor="breaks the event loop beyond repair", bound="1 extra start")
def breaks_the_event_loop(world: World) -> Felt:
    return _with_neighbor(world, "breaks_loop", extra_starts=1)


@case("B6", neighbor="cancels all coroutines of its loop", bound="unaffected")
def cancels_all_coroutines(world: World) -> Felt:
    return _with_neighbor(world, "cancels_all")


@case("B1", neighbor="blocks the event loop beyond its limit", bound="1 extra start; a wait of 2.5 s")
def blocks_the_event_loop(world: World) -> Felt:
    worker = world.start_worker("--processes", "2", "--concurrency", "8", ready=2, **{HARD_LIMIT: "0.3"})
    running = _start_naps(world, 1.5)
    culprit = world.push("mallory", "blocks_loop", 60.0, timeout=5.0, max_retries=0)
    eventually(lambda: culprit in world.starts())
    waiting = [world.push(f"late-{number}", "nap_lightly", 0.01, max_retries=0) for number in range(8)]
    world.wait_for([*waiting, *running], TaskState.FINISHED)
    world.wait_for([culprit], TaskState.FAILED)
    is_reported = "blocks_loop of user mallory" in worker.log
    wait, extra, wrong = _p99_wait(world, waiting), world.extra_starts(running), _charged(world, [*running, *waiting])
    return Felt(
        extra,
        wait,
        wrong,
        within_bound=is_reported and wait <= 2.5 and extra <= 1 and wrong == 0,
        details="" if is_reported else "the blocked loop was not reported",
    )


def _with_neighbor(world: World, name: str, *, extra_starts: int = 0) -> Felt:
    world.start_worker("--concurrency", "8")
    running = _start_naps(world, 1.0)
    culprit = world.push("mallory", name, max_retries=0)
    later = [world.push(f"user-{number}", "nap_async", 0.01, max_retries=0) for number in range(USERS)]
    world.wait_for([culprit], TaskState.FAILED)
    world.wait_for([*running, *later], TaskState.FINISHED)
    extra, wrong = world.extra_starts([*running, *later]), _charged(world, [*running, *later])
    return Felt(extra, _p99_wait(world, later), wrong, within_bound=extra <= extra_starts and wrong == 0)


def _start_naps(world: World, seconds: float) -> list[str]:
    """One coroutine of each user, all of them running."""
    others = [world.push(f"user-{number}", "nap_async", seconds, max_retries=0) for number in range(USERS)]
    eventually(lambda: len(world.starts()) == USERS)
    return others


def _charged(world: World, ids: Sequence[str]) -> int:
    """Return the number of these tasks that have an attempt that counts against them."""
    return sum(any(attempt.kind != "released" for attempt in world.queue.history(task_id)) for task_id in ids)


def _p99_wait(world: World, ids: Sequence[str]) -> float:
    tasks = [world.queue.get_task(task_id) for task_id in ids]
    return percentile([task.started_at - task.created_at for task in tasks if task.started_at], 0.99)
