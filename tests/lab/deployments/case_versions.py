"""Processes of different versions, or with different keys, on one server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_fairque.engine.model.data_format import FORMAT
from django_fairque.engine.model.errors import DataFormatError
from django_fairque.engine.model.records import TaskState
from tests.worker.conftest import eventually

from .cases import Outcome, case

if TYPE_CHECKING:
    from tests.lab.neighbors.world import World

STATS = "fq:{default:0}:stats"


@case(
    "a newer version has changed the format of the data under a worker and a producer",
    expected="both change nothing and say what to do; when the format is back, the 10 tasks that waited run",
)
def mixed_formats(world: World) -> Outcome:
    worker = world.start_worker("--processes", "1")
    first = world.push("ann", "add", 1, 2)
    world.wait_for([first], TaskState.FINISHED)
    world.queue.pause()
    waiting = world.push_many("ann", "add", 10, 1, 2)
    world.redis.hset(STATS, mapping={"format": FORMAT + 1, "format_version": "9.8.7", "revision": ""})
    refusal = ""
    try:
        world.push("ann", "add", 1, 2)
    except DataFormatError as error:
        refusal = str(error)
    eventually(lambda: f"have format {FORMAT + 1}" in worker.log)
    world.redis.hset(STATS, mapping={"format": FORMAT, "revision": ""})
    states = {state.name.lower() for state in world.states(waiting)}
    world.queue.resume()
    world.wait_for(waiting, TaskState.FINISHED)
    code = worker.stop()
    is_clear = "Install a version that uses it" in refusal
    names = ", ".join(sorted(states))
    text = f"push refused{' with advice' if is_clear else ''}; tasks meanwhile: {names}; then all ran; exit code {code}"
    return Outcome(text, is_clear and states == {"queued"} and code == 0)


@case(
    "a worker with another signing key and one with the right key",
    expected="300 tasks of 5 users run; 0 dead letters, 0 second attempts; the other worker's log names the key",
)
def mixed_keys(world: World) -> Outcome:
    other = world.start_worker("--processes", "1", DJANGO_SETTINGS_MODULE="tests.lab.deployments.other_key")
    tasks = [task_id for number in range(5) for task_id in world.push_many(f"user{number}", "add", 60, 1, 2)]
    eventually(lambda: "with a key that it does not have" in other.log)
    world.start_worker("--processes", "1")
    world.wait_for(tasks, TaskState.FINISHED, 60)
    dead = world.queue.dlq.count()
    again = sum(len(world.queue.history(task_id)) > 1 for task_id in tasks)
    text = f"{len(tasks)} tasks ran; {dead} dead letters; {again} tasks with a second attempt"
    return Outcome(text, dead == again == 0)
