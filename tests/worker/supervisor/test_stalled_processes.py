"""A process that does not respond gives back what it has not begun, and starts none of it when it responds again."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from django_fairque.engine.model.task import Task
from django_fairque.worker.supervisor import child_process as stalls
from tests.lab.proof.budget import times
from tests.worker.conftest import STARTED, Workers, eventually, recorded

if TYPE_CHECKING:
    from redis import Redis

    from django_fairque.engine.queue.queue import FairQueue

READY_AGAIN = "are ready again: worker process did not respond"


def leases_key(redis: Redis, process: psutil.Process) -> bytes:
    """Return the key of this process's leases. Its record may be written a moment after it is ready."""

    def find() -> bytes | None:
        for key in redis.scan_iter("fq:{default:0}:worker:*"):
            pid: Any = redis.hget(key, "pid")
            if int(pid or 0) == process.pid:
                return b"fq:{default:0}:leases:" + bytes(key).split(b":worker:", 1)[1]
        return None

    return bytes(eventually(find))


def held_by(redis: Redis, process: psutil.Process) -> set[str]:
    """Ids of the tasks that are leased to this process."""
    ids: Any = redis.smembers(leases_key(redis, process))
    return {task_id.decode() for task_id in ids}


def wait_while_held(redis: Redis, key: bytes, fewer_than: int, seconds: float) -> None:
    """Wait while fewer tasks are leased to a process, for so long at most: on a busy machine it may get none for a while."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        held: Any = redis.scard(key)
        if held >= fewer_than:
            return
        time.sleep(0.002)


def push_short_tasks(queue: FairQueue, users: int, per_user: int, seconds: float) -> list[str]:
    tasks = [
        Task.create(f"user{user}", 3, {"args": [seconds], "kwargs": {}}, name="nap")
        for _ in range(per_user)
        for user in range(users)
    ]
    return [result.task_id for result in queue.push_batch(tasks)]


def not_begun(redis: Redis, process: psutil.Process) -> set[str]:
    """Ids of the tasks that are leased to this process and have not started there; its slots may be about to start some."""
    return held_by(redis, process) - {task_id for task_id, _ in recorded(redis, STARTED)}


def stop_with_fetched_tasks(
    queue: FairQueue, redis: Redis, process: psutil.Process, slots: int
) -> tuple[list[str], set[str]]:
    """Stop the process while it holds more than its slots are about to start.

    Returns the ids of the tasks pushed for that, and of those that it had not begun when it was stopped: on a busy machine, some
    may have been given back before a second look.

    A process fetches ahead only if a task takes less time than a call to the server. So these tasks do not sleep, and there
    are always some: then it happens at any speed of the machine.
    """
    ids: list[str] = []

    def stopped_with() -> set[str] | None:
        nonlocal ids
        if queue.get_stats().states["queued"] < 400:
            ids += push_short_tasks(queue, users=10, per_user=60, seconds=0.0)
        process.send_signal(signal.SIGSTOP)
        fetched = not_begun(redis, process)
        if len(fetched) > slots:
            return fetched
        process.send_signal(signal.SIGCONT)
        return None

    fetched: set[str] = eventually(stopped_with)
    return ids, fetched


def test_a_stopped_process_returns_tasks_that_it_has_not_started(workers: Workers) -> None:
    worker = workers.start("--processes", "2", "--concurrency", "2").wait_ready(2)
    stopped = worker.children()[0]
    ids, fetched = stop_with_fetched_tasks(workers.queue, workers.redis, stopped, 2)
    eventually(lambda: len(not_begun(workers.redis, stopped)) <= 2)
    # The tasks that it still holds have started, will start in its two slots, or have ended and are not reported yet.
    kept = held_by(workers.redis, stopped)
    others = [task_id for task_id in ids if task_id not in kept]
    workers.wait_for(*others)
    assert fetched - kept, "the process had fetched tasks ahead"
    eventually(lambda: READY_AGAIN in worker.log)
    stopped.send_signal(signal.SIGCONT)
    workers.wait_for(*ids)
    eventually(lambda: "responds again" in worker.log)
    assert set(workers.starts().values()) == {1}
    # The process takes part again.
    before = len(workers.started())
    push_short_tasks(workers.queue, users=10, per_user=20, seconds=0.01)
    eventually(lambda: stopped.pid in {pid for _, pid in workers.started()[before:]})
    assert worker.stop() == 0


def test_a_process_blocked_by_a_regular_expression_returns_tasks_that_it_has_not_started(workers: Workers) -> None:
    worker = workers.start("--processes", "2", "--concurrency", "4", task_timeout="60").wait_ready(2)
    push_short_tasks(workers.queue, users=10, per_user=10, seconds=0.01)
    blocking = workers.push("backtrack", 40, user="mallory")  # this regular expression would run for days
    eventually(lambda: blocking in workers.starts())
    (blocked,) = {pid for task_id, pid in workers.started() if task_id == blocking}
    ids = push_short_tasks(workers.queue, users=10, per_user=20, seconds=0.01)
    running = {task_id for task_id, pid in workers.started() if pid == blocked}
    others = [task_id for task_id in ids if task_id not in running]
    workers.wait_for(*others)
    eventually(lambda: "has not responded" in worker.log)
    assert set(workers.starts().values()) == {1}
    psutil.Process(blocked).kill()


@pytest.mark.slow
def test_no_task_starts_twice_however_often_a_process_is_stopped(workers: Workers) -> None:
    """The supervisor gives back after 10 ms here, so that a stall lasts 0.1 s: also of processes that only have no time."""
    count = times(200)
    worker = workers.start(
        "--processes", "2", "--concurrency", "3", TEST_STALLED_AFTER="0.01", lease_seconds="60"
    ).wait_ready(2)
    chance, ids, children = random.Random(count), [], worker.children()
    keys = [leases_key(workers.redis, child) for child in children]
    for _ in range(count):
        if workers.queue.get_stats().states["queued"] < 400:
            # Most do not sleep: of such a process fetches many ahead, however fast the machine is.
            ids += push_short_tasks(workers.queue, users=20, per_user=57, seconds=0.0)
            ids += push_short_tasks(workers.queue, users=20, per_user=3, seconds=0.001)
        at = chance.randrange(2)
        wait_while_held(workers.redis, keys[at], 5, seconds=0.5)  # the process holds more leases than it runs
        time.sleep(chance.uniform(0, 0.01))
        children[at].send_signal(signal.SIGSTOP)
        time.sleep(chance.uniform(0.03, 0.15))
        children[at].send_signal(signal.SIGCONT)
    eventually(lambda: workers.queue.get_stats().states["finished"] == len(ids), 120)
    assert Counter(workers.starts().values()) == {1: len(ids)}
    assert worker.log.count(READY_AGAIN) > count / 4, "few of the stalls met anything"


def test_a_stalled_process_is_detected_within_two_seconds() -> None:
    """Tasks that have not begun are back within 2 seconds: the delays leave a second for the call itself."""
    from django_fairque.worker.common import limits
    from django_fairque.worker.supervisor import supervisor

    assert stalls.STALLED_SECONDS >= 2 * 10 * limits.TIME_LIMIT_TICK_SECONDS, (
        "an idle process shows that it responds twice a second"
    )
    assert stalls.STALLED_SECONDS + stalls.FENCE_SETTLE_SECONDS + 2 * supervisor.SUPERVISOR_TICK_SECONDS < 1.5
