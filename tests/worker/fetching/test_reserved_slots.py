"""Urgent tasks start before others that a process has fetched, and reserved slots wait for them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, cast

import pytest

from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.worker.common.buffer import LeaseBuffer
from django_fairque.worker.common.status_board import StatusBoard
from django_fairque.worker.execution.slots import SlotPool
from django_fairque.worker.fetching.fetch_planner import FetchCall, FetchPlanner
from django_fairque.worker.fetching.queue_context import QueueContext, RevokedLeases
from tests.worker.conftest import Workers, eventually
from tests.worker.fetching.planners import Ignores, answer, budget_of, lease, planned

if TYPE_CHECKING:
    from pathlib import Path

    from redis import Redis

    from django_fairque.engine.model.lanes import Lane

SLOTS = ("--concurrency", "4", "--reserve", "urgent=1", "--reserve", "normal=1")
"""Two slots for bulk tasks, one more for normal ones, and one more for urgent ones."""

LONG_POLLS = {"poll_interval": "600", "FAIRQUE_REDIS__SOCKET_TIMEOUT": "700"}
"""A process that is not woken would find a task only after this time."""


class Tasks:
    """Pushes tasks that run until `release` is called, and counts those that have started."""

    def __init__(self, workers: Workers, directory: Path) -> None:
        self._workers = workers
        self._directory = directory
        self.lanes: dict[str, Lane] = {}

    def push(self, lane: Lane, number: int = 1, *, group: str = "all", into: FairQueue | None = None) -> list[str]:
        ids = [
            self._workers.push(
                "waits_for",
                str(self._directory / group),
                user=f"{lane}-{len(self.lanes)}-{index}",
                lane=lane,
                into=into or self._workers.queue,
            )
            for index in range(number)
        ]
        self.lanes.update(dict.fromkeys(ids, lane))
        return ids

    def started(self) -> Counter[Lane]:
        return Counter(self.lanes[task_id] for task_id, _ in self._workers.started())

    def release(self, group: str = "all") -> None:
        (self._directory / group).touch()


@pytest.fixture
def shards() -> int:
    return 1


@pytest.fixture
def queue(redis: Redis, shards: int) -> FairQueue:
    return FairQueue(redis, "default", QueueConfig(shards=shards))


@pytest.fixture
def tasks(workers: Workers, tmp_path: Path) -> Tasks:
    return Tasks(workers, tmp_path)


def test_the_buffer_keeps_the_order_within_each_lane() -> None:
    buffer = LeaseBuffer(lambda name: (2, 9.0) if name == "batch" else None)
    old, bulk, urgent = lease(user="ann"), lease(user="bob", lane="bulk"), lease(user="cid", lane="urgent")
    buffer.add([old, bulk, urgent], 0.0)
    newcomers = [lease(user="new"), lease(user="newer")]
    later = [lease(user="ann"), lease(user="dan", lane="bulk")]
    more_urgent = [lease(user="cid", lane="urgent"), lease(user="eve", lane="urgent")]
    buffer.add([*later, *newcomers, *more_urgent], 0.0)
    assert list(buffer.works) == [urgent, *more_urgent, *newcomers, old, bulk, *later]


def test_a_batch_has_tasks_of_one_lane_and_an_urgent_one_goes_first() -> None:
    buffer = LeaseBuffer(lambda name: (2, 9.0) if name == "batch" else None)
    waiting = lease()
    bulk, urgent = ([lease("batch", lane=lane) for _ in range(2)] for lane in ("bulk", "urgent"))
    buffer.add([waiting, *(one for pair in zip(bulk, urgent, strict=True) for one in pair)], 0.0)
    assert sorted(buffer.add_batches(0.0, all_of_them=False), key=lambda batch: batch[0].token) == [bulk, urgent]
    assert list(buffer.works) == [urgent, waiting, bulk]


def test_an_urgent_task_of_any_shard_gets_the_next_free_slot(queue: FairQueue) -> None:
    budget, ignores = budget_of(1), Ignores()
    planners = [FetchPlanner(number, budget) for number in range(3)]
    contexts = [QueueContext(queue, planner, cast("Any", ignores), RevokedLeases()) for planner in planners]
    board = StatusBoard.private(1, len(planners))
    (slot,) = SlotPool(contexts, 1, board, close_connections=False, urgent=budget.urgent).slots
    lanes: list[Lane] = ["normal", "normal", "urgent"]
    for planner, lane in zip(planners, lanes, strict=True):
        planner.exhausted = False
        call = FetchCall(fetch=1)
        planner.pending_calls.append(call)
        answer(planner, call, [lease(lane=lane)], 0.0)
    taken = []
    while slot._take():
        taken.append(slot._taken_work().lane)  # type: ignore[union-attr]
    assert taken == ["urgent", "normal", "normal"]


def test_a_queue_fetches_again_if_others_had_requested_all_slots_that_are_not_reserved() -> None:
    budget = budget_of(4, reserve={"urgent": 1})
    planners = [FetchPlanner(number, budget) for number in range(3)]
    calls = [planned(planner, 0.0) for planner in planners]
    assert [call.lane_limits for call in calls] == [(2, 2), (1, 1), (0, 0)]
    for planner, call in zip(planners, calls, strict=True):
        answer(planner, call, [], 0.001)
    assert [planner.next_call(0.002) is not None for planner in planners] == [False, False, True]


@pytest.mark.thorough
@pytest.mark.parametrize("shards", [1, 4])
def test_urgent_tasks_begin_before_the_tasks_that_a_process_has_fetched(workers: Workers, shards: int) -> None:
    normal = [
        Task.create(f"user-{number % 50}", 3, {"args": [0], "kwargs": {}}, name="count_me") for number in range(3000)
    ]
    workers.queue.push_batch(normal)
    workers.start("--concurrency", "1", TEST_SHARDS=str(shards)).wait_ready()
    urgent = []
    for number in range(20):
        eventually(lambda number=number: len(workers.started()) > 100 * number)  # type: ignore[misc]
        urgent.append(workers.push("count_me", 0, user=f"urgent-{number}", lane="urgent"))
    workers.wait_for(*urgent)
    order = [task_id for task_id, _ in workers.started()]
    place = {task_id: index for index, task_id in enumerate(order)}
    leased = {task_id: workers.queue.get_task(task_id).started_at or 0.0 for task_id in order}
    overtaken, behind = 0, 0
    for task_id in urgent:
        overtaken += sum(leased[other] < leased[task_id] for other in order[place[task_id] + 1 :])
        behind += sum(leased[other] >= leased[task_id] for other in order[: place[task_id]] if other not in urgent)
    assert overtaken > 0, "no task had been fetched ahead"
    assert behind <= 2, "two fetches may be in progress, and their replies may change places"


@pytest.mark.parametrize("shards", [1, 4])
def test_bulk_tasks_leave_the_reserved_slots_free(workers: Workers, tasks: Tasks, shards: int) -> None:
    bulk = tasks.push("bulk", 12)
    workers.start(*SLOTS, TEST_SHARDS=str(shards)).wait_ready()
    eventually(lambda: tasks.started() == {"bulk": 2})
    normal = tasks.push("normal", 6)
    eventually(lambda: tasks.started() == {"bulk": 2, "normal": 1})
    urgent = tasks.push("urgent")
    eventually(lambda: tasks.started() == {"bulk": 2, "normal": 1, "urgent": 1})
    tasks.release()
    workers.wait_for(*bulk, *normal, *urgent)


def test_urgent_tasks_use_all_slots(workers: Workers, tasks: Tasks) -> None:
    urgent = tasks.push("urgent", 6)
    workers.start(*SLOTS).wait_ready()
    eventually(lambda: tasks.started() == {"urgent": 4})
    tasks.release()
    workers.wait_for(*urgent)


def test_the_queues_of_a_worker_share_the_slots_that_are_not_reserved(workers: Workers, tasks: Tasks) -> None:
    mail = FairQueue(workers.redis, "mail", QueueConfig())
    bulk = tasks.push("bulk", 3)
    tasks.push("bulk", 3, into=mail)
    workers.start("--queue", "default", "mail", *SLOTS).wait_ready()
    eventually(lambda: tasks.started()["bulk"] == 2)
    tasks.push("normal", 2, into=mail)
    eventually(lambda: tasks.started()["normal"] == 1)
    for into in (mail, workers.queue):
        task_id = workers.push("add", 1, 1, lane="urgent", into=into)
        eventually(lambda into=into, task_id=task_id: into.get_task(task_id).state is TaskState.FINISHED)  # type: ignore[misc]
    assert tasks.started() == {"bulk": 2, "normal": 1}
    tasks.release()
    workers.wait_for(*bulk)
    eventually(lambda: not mail.get_stats().states["queued"] and not mail.get_stats().states["started"])


def test_a_process_whose_free_slots_are_reserved_is_woken_by_urgent_tasks_alone(workers: Workers, tasks: Tasks) -> None:
    """An idle wait would take a call or more for each bulk task, and a loop thousands."""
    bulk = tasks.push("bulk", 5)
    workers.start(*SLOTS, **LONG_POLLS).wait_ready()
    eventually(lambda: tasks.started() == {"bulk": 2})
    workers.run("add", 1, 1, lane="urgent")
    workers.redis.config_resetstat()
    for _ in range(20):
        bulk += tasks.push("bulk", 5)
        workers.run("add", 1, 1, lane="urgent")
    stats = workers.redis.info("commandstats")
    assert stats["cmdstat_bzpopmin"]["calls"] <= 2 * 20
    assert tasks.started() == {"bulk": 2}
    tasks.release()
    workers.wait_for(*bulk)


def test_a_lower_lane_is_served_at_once_when_its_slots_become_free(workers: Workers, tasks: Tasks) -> None:
    """The wait that began while these slots were taken is only for higher lanes."""
    first = tasks.push("bulk", 2, group="first")
    workers.start(*SLOTS, **LONG_POLLS).wait_ready()
    eventually(lambda: tasks.started() == {"bulk": 2})
    workers.run("add", 1, 1)  # lane normal
    for number in range(3):
        tasks.release("first" if number == 0 else f"again-{number}")
        workers.wait_for(*first)
        first = tasks.push("bulk", 2, group=f"again-{number + 1}")
        eventually(lambda number=number: tasks.started() == {"bulk": 2 * (number + 2)})  # type: ignore[misc]
        workers.run("add", 1, 1, lane="urgent")
    tasks.release("again-3")
    workers.wait_for(*first)


def test_waiting_bulk_tasks_follow_when_a_slot_becomes_free(workers: Workers, tasks: Tasks) -> None:
    one, other, rest = (tasks.push("bulk", group=group)[0] for group in ("one", "other", "rest"))
    workers.start(*SLOTS, **LONG_POLLS).wait_ready()
    eventually(lambda: tasks.started() == {"bulk": 2})
    tasks.release("one")
    workers.wait_for(one)
    eventually(lambda: tasks.started() == {"bulk": 3})
    tasks.release("other")
    tasks.release("rest")
    workers.wait_for(other, rest)


def test_a_slot_that_becomes_free_in_one_queue_is_used_by_another(workers: Workers, tasks: Tasks) -> None:
    mail = FairQueue(workers.redis, "mail", QueueConfig())
    first = tasks.push("bulk", 2, group="first")
    workers.start("--queue", "default", "mail", *SLOTS, **LONG_POLLS).wait_ready()
    eventually(lambda: tasks.started() == {"bulk": 2})
    tasks.push("bulk", 2, group="second", into=mail)
    workers.run("add", 1, 1, lane="urgent")
    assert tasks.started() == {"bulk": 2}
    tasks.release("first")
    workers.wait_for(*first)
    eventually(lambda: tasks.started() == {"bulk": 4})
    tasks.release("second")
    eventually(lambda: not mail.get_stats().states["started"])


def test_a_burst_worker_with_reserved_slots_runs_all_tasks(workers: Workers) -> None:
    mail = FairQueue(workers.redis, "mail", QueueConfig())
    lanes: tuple[Lane, ...] = ("bulk", "normal", "urgent")
    for number in range(60):
        workers.push("nap", 0.01, lane=lanes[number % 3], into=mail if number % 2 else workers.queue)
    assert workers.start("--burst", "--queue", "default", "mail", *SLOTS).wait() == 0
    assert [queue.get_stats().states["finished"] for queue in (mail, workers.queue)] == [30, 30]


def test_a_batch_takes_one_slot_of_its_lane(workers: Workers, tasks: Tasks) -> None:
    batches = [workers.push("nap_together", 0.2, lane="bulk") for _ in range(20)]
    workers.start("--concurrency", "2", "--reserve", "urgent=1").wait_ready()
    urgent = workers.run("add", 1, 1, lane="urgent")
    assert TaskState.QUEUED in workers.states(batches), "they took both slots"
    workers.wait_for(*batches)
    assert workers.state(urgent) is TaskState.FINISHED
