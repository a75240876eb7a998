"""Processes of different versions on one server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_fairque.engine.model.data_format import FORMAT
from django_fairque.engine.model.errors import DataFormatError
from django_fairque.engine.model.records import TaskState
from tests.worker.conftest import eventually

from .cases import Outcome, case

if TYPE_CHECKING:
    from tests.neighbors.world import World

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
    is_clear = "fairque_format" in refusal
    names = ", ".join(sorted(states))
    text = (
        f"push refused{' with a command' if is_clear else ''}; tasks meanwhile: {names}; then all ran; exit code {code}"
    )
    return Outcome(text, is_clear and states == {"queued"} and code == 0)
