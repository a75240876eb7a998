"""A process that does not respond gives back what it has not begun, and starts none of it when it responds again."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from django_fairque.engine.model.records import TaskState
from django_fairque.engine.model.task import Task
from django_fairque.worker.supervisor import child_process as stalls
from tests.lab.proof.budget import times
from tests.worker.conftest import eventually, recorded
from tests.worker.project.tasks import STARTED

if TYPE_CHECKING:
    from redis import Redis

    from django_fairque.engine.queue.queue import FairQueue
    from tests.worker.conftest import Push, StartWorker

READY_AGAIN = "are ready again: worker process did not respond"


def leases_key(redis: Redis, process: psutil.Process) -> bytes:
    """The key of what is leased to this process. A process may be ready a moment before its record is written."""

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
    return {each.decode() for each in ids}


def wait_while_held(redis: Redis, key: bytes, fewer_than: int, seconds: float) -> None:
    """Wait while fewer tasks are leased to a process, for so long at most: on a busy machine it may get none for a while."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        held: Any = redis.scard(key)
        if held >= fewer_than:
            return
        time.sleep(0.002)


def push_short_tasks(queue: FairQueue, users: int, each: int, seconds: float) -> list[str]:
    tasks = [
        Task.create(f"user{user}", 3, {"args": [seconds], "kwargs": {}}, name="nap")
        for _ in range(each)
        for user in range(users)
    ]
    return [result.task_id for result in queue.push_batch(tasks)]


def starts(redis: Redis) -> Counter[str]:
    return Counter(task_id for task_id, _ in recorded(redis, STARTED))


def not_begun(redis: Redis, process: psutil.Process) -> set[str]:
    """Ids of the tasks that are leased to this process and have not started there; its slots may be about to start some."""
    return held_by(redis, process) - set(starts(redis))


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
            ids += push_short_tasks(queue, users=10, each=60, seconds=0.0)
        process.send_signal(signal.SIGSTOP)
        fetched = not_begun(redis, process)
        if len(fetched) > slots:
            return fetched
        process.send_signal(signal.SIGCONT)
        return None

    fetched: set[str] = eventually(stopped_with)
    return ids, fetched


def test_a_stopped_process_gives_back_what_it_has_not_begun(
    queue: FairQueue, redis: Redis, start_worker: StartWorker
) -> None:
    worker = start_worker("--processes", "2", "--concurrency", "2").wait_ready(2)
    stopped = worker.children()[0]
    ids, fetched = stop_with_fetched_tasks(queue, redis, stopped, 2)
    eventually(lambda: len(not_begun(redis, stopped)) <= 2)
    # What it still holds has started, or is about to start in its two slots. Some may have ended without being reported yet.
    kept = held_by(redis, stopped)
    others = [each for each in ids if each not in kept]
    eventually(lambda: all(queue.get_task(each).state is TaskState.FINISHED for each in others))
    assert fetched - kept, "it had fetched ahead"
    eventually(lambda: READY_AGAIN in worker.log)
    stopped.send_signal(signal.SIGCONT)
    eventually(lambda: all(queue.get_task(each).state is TaskState.FINISHED for each in ids))
    eventually(lambda: "responds again" in worker.log)
    assert set(starts(redis).values()) == {1}
    # It takes part again.
    before = len(recorded(redis, STARTED))
    push_short_tasks(queue, users=10, each=20, seconds=0.01)
    eventually(lambda: stopped.pid in {pid for _, pid in recorded(redis, STARTED)[before:]})
    assert worker.stop() == 0


def test_a_process_that_a_regular_expression_blocks_gives_back_what_it_has_not_begun(
    queue: FairQueue, redis: Redis, push: Push, start_worker: StartWorker
) -> None:
    worker = start_worker("--processes", "2", "--concurrency", "4", FAIRQUE_WORKER__TASK_TIMEOUT="60").wait_ready(2)
    push_short_tasks(queue, users=10, each=10, seconds=0.01)
    blocking = push("backtrack", 40, user="mallory")  # for days
    eventually(lambda: blocking in starts(redis))
    (blocked,) = {pid for task_id, pid in recorded(redis, STARTED) if task_id == blocking}
    ids = push_short_tasks(queue, users=10, each=20, seconds=0.01)
    running = {task_id for task_id, pid in recorded(redis, STARTED) if pid == blocked}
    others = [each for each in ids if each not in running]
    eventually(lambda: all(queue.get_task(each).state is TaskState.FINISHED for each in others))
    eventually(lambda: "has not responded" in worker.log)
    assert set(starts(redis).values()) == {1}
    psutil.Process(blocked).kill()


@pytest.mark.slow
def test_no_task_starts_twice_however_often_a_process_is_stopped(
    queue: FairQueue, redis: Redis, start_worker: StartWorker
) -> None:
    """The supervisor gives back after 10 ms here, so that a stall lasts 0.1 s: also of processes that only have no time."""
    count = times(200)
    worker = start_worker(
        "--processes", "2", "--concurrency", "3", TEST_STALLED_AFTER="0.01", FAIRQUE_WORKER__LEASE_SECONDS="60"
    ).wait_ready(2)
    chance, ids, children = random.Random(count), [], worker.children()
    keys = [leases_key(redis, each) for each in children]
    for _ in range(count):
        if queue.get_stats().states["queued"] < 400:
            # Most do not sleep: of such a process fetches many ahead, however fast the machine is.
            ids += push_short_tasks(queue, users=20, each=57, seconds=0.0)
            ids += push_short_tasks(queue, users=20, each=3, seconds=0.001)
        at = chance.randrange(2)
        wait_while_held(redis, keys[at], 5, seconds=0.5)  # more than it runs
        time.sleep(chance.uniform(0, 0.01))
        children[at].send_signal(signal.SIGSTOP)
        time.sleep(chance.uniform(0.03, 0.15))
        children[at].send_signal(signal.SIGCONT)
    eventually(lambda: queue.get_stats().states["finished"] == len(ids), 120)
    assert Counter(starts(redis).values()) == {1: len(ids)}
    assert worker.log.count(READY_AGAIN) > count / 4, "few of the stalls met anything"


def test_a_stall_is_seen_in_time() -> None:
    """What a process has not begun is back within 2 seconds: the times that lead there, with a second for the call itself."""
    from django_fairque.worker.common import limits
    from django_fairque.worker.supervisor import supervisor

    assert stalls.STALLED_SECONDS >= 2 * 10 * limits.TIME_LIMIT_TICK_SECONDS, (
        "an idle process shows that it responds twice a second"
    )
    assert stalls.STALLED_SECONDS + stalls.FENCE_SETTLE_SECONDS + 2 * supervisor.SUPERVISOR_TICK_SECONDS < 1.5
