"""Processes that a task, or somebody else, keeps from responding."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

from django_fairque.engine.model.records import TaskState
from tests.worker.conftest import eventually

from .cases import Felt, case

if TYPE_CHECKING:
    from .world import World

LEASE_SECONDS = 2.0
"""The supervisor needs some of it to look twice."""


@case(
    "B10", neighbor="its process is stopped (SIGSTOP) for good", bound="1 extra start; ended after 2 leases, here 4 s"
)
def stopped_for_good(world: World) -> Felt:
    worker = world.start_worker(
        "--processes", "1", "--concurrency", "4", FAIRQUE_WORKER__LEASE_SECONDS=f"{LEASE_SECONDS}"
    )
    end = world.directory / "end"
    others = [world.push(user, "waits_for", str(end)) for user in ("ann", "bob")]
    eventually(lambda: len(world.starts()) == len(others))
    (child,) = worker.children()
    child.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    eventually(lambda: sum(world.starts().values()) == 2 * len(others))
    seconds = time.monotonic() - began
    end.touch()
    world.wait_for(others, TaskState.FINISHED)
    extra = world.extra_starts(others)
    is_within = extra <= 1 and 2 * LEASE_SECONDS - 0.5 <= seconds <= 2 * LEASE_SECONDS + 2.0
    return Felt(extra, None, 0, is_within, f"started again after {seconds:.1f} s")


@case(
    "B10",
    neighbor="keeps the interpreter lock until its hard limit",
    bound="1 extra start; reported after a lease; only the neighbor fails, however short the limits of others are",
)
def keeps_the_interpreter(world: World) -> Felt:
    worker = world.start_worker(
        *("--processes", "1", "--concurrency", "4"),
        FAIRQUE_WORKER__LEASE_SECONDS=f"{LEASE_SECONDS}",
        FAIRQUE_WORKER__HARD_TIMEOUT_GRACE="0.5",
    )
    others = [world.push(user, "nap", 0.8, timeout=1.5, max_retries=0) for user in ("ann", "bob")]
    eventually(lambda: len(world.starts()) == len(others))
    keeping = world.push("mallory", "backtrack", 40, timeout=6, max_retries=0)
    world.wait_for([keeping], TaskState.FAILED)
    world.wait_for(others, TaskState.FINISHED)
    extra = world.extra_starts(others)
    is_reported = f"Tasks that may be the cause: {keeping}." in worker.log
    return Felt(extra, None, 0, extra <= 1 and is_reported, "reported" if is_reported else "not reported")
