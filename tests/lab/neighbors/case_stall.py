"""Processes that do not respond, a server that restarts, and copies of worker processes."""

from __future__ import annotations

import re
import signal
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from django_fairque.engine.model.records import TaskState
from tests.lab.campaign.proxy import SLOW, Proxy
from tests.worker.conftest import eventually, is_alive, recorded
from tests.worker.project.tasks import STARTED

from .cases import Felt, case, percentile

if TYPE_CHECKING:
    from tests.worker.conftest import WorkerProcess

    from .world import World

RETURN_SECONDS = 2.0
"""The documented bound on the time until the server has back what a process has not begun."""


def _leases_key(world: World, pid: int) -> bytes:
    """Return the key of this process's leases. Its record may be written a moment after it is ready."""

    def find() -> bytes | None:
        for key in world.redis.scan_iter("fq:{default:0}:worker:*"):
            found: Any = world.redis.hget(key, "pid")
            if int(found or 0) == pid:
                return b"fq:{default:0}:leases:" + bytes(key).split(b":worker:", 1)[1]
        return None

    return bytes(eventually(find))


SLOTS = 2
_RETURNED = re.compile(r"(\d+) tasks of worker \S+ are ready again: worker process did not respond")


def _not_begun(world: World, key: bytes, pid: int) -> int:
    """Return the number of tasks that are leased to the process and have not started there."""
    leased: Any = world.redis.smembers(key)
    return len(
        {task_id.decode() for task_id in leased}
        - {task_id for task_id, by in recorded(world.redis, STARTED) if by == pid}
    )


def _wait_for_return(world: World, worker: WorkerProcess, pid: int, stalled_at: float) -> tuple[int, float]:
    """Wait until a stalled process's prefetched tasks were given back; return their number and the seconds until then.

    Afterwards the process holds only tasks that it has started, or that its slots are about to start. It may have fetched none
    ahead.
    """
    key = _leases_key(world, pid)
    eventually(lambda: _not_begun(world, key, pid) <= SLOTS)
    seconds = world.now() - stalled_at
    return sum(map(int, _RETURNED.findall(worker.log))), seconds


def _felt(count: int, seconds: float, extra_starts: int) -> Felt:
    is_within = extra_starts == 0 and seconds <= RETURN_SECONDS
    return Felt(extra_starts, None, 0, is_within, f"{count} tasks given back after {seconds:.2f} s")


@case("B4", neighbor="blocks the interpreter with a regular expression", bound="given back within 2 s; 0 extra starts")
def regular_expression(world: World) -> Felt:
    # The longer a call takes in comparison to a task, the more a process fetches ahead: with this latency it does on any machine.
    path = str(world.directory / "slow")
    network = Proxy(path, world.server.url.removeprefix("unix://").partition("?")[0], latency=0.01)
    network.mode = SLOW
    worker = world.start_worker(
        *("--processes", "2", "--concurrency", f"{SLOTS}"),
        ready=2,
        TEST_SERVER=f"unix://{path}",
        FAIRQUE_WORKER__TASK_TIMEOUT="300",
    )
    file = world.directory / "runs"
    others = [task_id for n in range(19) for task_id in world.push_many(f"user{n}", "append", 200, str(file), 0.002)]
    eventually(lambda: world.queue.get_stats().states["finished"] > 200)  # the worker fetches ahead after 200 tasks
    blocking = world.push("mallory", "backtrack_at_once", 40)
    eventually(lambda: world.queue.get_task(blocking).started_at)
    (count,) = eventually(lambda: _RETURNED.findall(worker.log)[:1])
    seconds = world.now() - (world.queue.get_task(blocking).started_at or 0.0)
    (leases,) = (
        key for key in world.redis.scan_iter("fq:{default:0}:leases:*") if world.redis.sismember(key, blocking)
    )
    leased: Any = world.redis.smembers(leases)
    free = set(others) - {task_id.decode() for task_id in leased}  # tasks that it had begun end with it
    world.wait_for(free, TaskState.FINISHED)
    runs = Counter(line.split(" ")[0] for line in file.read_text().splitlines())
    network.close()
    return _felt(int(count), seconds, max(runs[task_id] - 1 for task_id in free))


@case("B4", neighbor="its process is stopped (SIGSTOP) and goes on", bound="given back within 2 s; 0 extra starts")
def stopped_process(world: World) -> Felt:
    worker = world.start_worker("--processes", "2", "--concurrency", f"{SLOTS}", ready=2)
    others: list[str] = []
    stopped = worker.children()[0]
    key = _leases_key(world, stopped.pid)

    def holds_more() -> bool:
        # A process fetches ahead only if a task takes less time than a call to the server: so these do not sleep.
        if world.queue.get_stats().states["queued"] < 400:
            others.extend(task_id for n in range(10) for task_id in world.push_many(f"user{n}", "nap", 100, 0.0))
        if world.redis.scard(key) <= 2 * SLOTS:  # a process that is stopped all the time fetches nothing
            return False
        stopped.send_signal(signal.SIGSTOP)
        if _not_begun(world, key, stopped.pid) > SLOTS:
            return True
        stopped.send_signal(signal.SIGCONT)
        return False

    eventually(holds_more)
    count, seconds = _wait_for_return(world, worker, stopped.pid, world.now())
    stopped.send_signal(signal.SIGCONT)
    world.wait_for(others, TaskState.FINISHED)
    return _felt(count, seconds, world.extra_starts(others))


@case("B5", neighbor="runs a long task while the server restarts", bound="others start within 3 s of their push")
def restarted_server(world: World) -> Felt:
    worker = world.start_worker("--concurrency", "4", FAIRQUE_WORKER__LEASE_SECONDS="3")
    long = world.push("mallory", "nap_local", 60)
    eventually(lambda: world.queue.get_task(long).state is TaskState.STARTED)
    time.sleep(1.1)  # a heartbeat, which sees that another server answers
    world.redis.execute_command("SAVE")
    world.server.restart()
    eventually(lambda: "another server answers" in worker.log)
    others = [world.push(f"user{n}", "add", 1, 2) for n in range(5)]
    world.wait_for(others, TaskState.FINISHED)
    tasks = map(world.queue.get_task, others)
    wait = percentile([task.started_at - task.created_at for task in tasks if task.started_at], 0.99)
    is_running = world.queue.get_task(long).state is TaskState.STARTED
    return Felt(0, wait, int(not is_running), within_bound=is_running and wait <= 3.0)


@case("B6", neighbor="makes copies of its process with os.fork()", bound="0 copies outlive the worker; 0 extra starts")
def forks(world: World) -> Felt:
    worker = world.start_worker("--concurrency", "4")
    returning = [world.push("mallory", "forks", 0.0) for _ in range(5)]
    staying = [world.push("mallory", "forks", 600.0) for _ in range(3)]
    others = world.push_many("ann", "nap", 100, 0.005)
    world.wait_for([*returning, *staying, *others], TaskState.FINISHED)
    (child,) = worker.children()
    copies = child.children()
    extra = world.extra_starts(others)
    worker.send(signal.SIGKILL)
    worker.wait()
    eventually(lambda: not is_alive(child))
    deadline = time.monotonic() + 5.0
    while any(map(is_alive, copies)) and time.monotonic() < deadline:
        time.sleep(0.01)
    left = sum(map(is_alive, copies))
    return Felt(
        extra, None, left, within_bound=extra == 0 and left == 0, details=f"{left} of {len(copies)} copies left"
    )
