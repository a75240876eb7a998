"""Order inside one user: critical tasks come first, then priority and waiting time decide."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis import Redis

from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.model.priority import Priority, calculate_score
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import NOW, MakeQueue, pop, push_many, sweep_all, task

HEAD_START = 6 * 3600


@pytest.fixture
def queue(make_queue: MakeQueue) -> FairQueue:
    """Here nobody moves up: test_sla_and_starvation.py is about that."""
    return make_queue(fair_by="tasks", starvation={"VERY_LOW": 0, "LOW": 0, "NORMAL": 0})


@pytest.mark.parametrize("priority", [3, 6])
def test_a_bulk_push_of_3_000_tasks_keeps_its_order(queue: FairQueue, priority: int) -> None:
    ids = push_many(queue, "a", 3000, priority=priority)
    got: list[str] = []
    for size in (1, 7, 992, 1000, 1000):
        got += [lease.task_id for lease in queue.pop_batch(size, "w", now=NOW)]
    assert got == ids


def test_critical_tasks_start_before_all_others_of_the_user(queue: FairQueue) -> None:
    old = push_many(queue, "a", 2, priority=5)
    urgent = [queue.push(task("a", 6), now=NOW + 10**6).task_id for _ in range(2)]
    got = [lease.task_id for lease in queue.pop_batch(9, "w", now=NOW + 10**6)]
    assert got == urgent + old


class Oracle:
    """The rule in five lines: the highest weight × (waited + head start), then the higher class, then the elder."""

    def __init__(self) -> None:
        self.waiting: list[tuple[int, float, str]] = []

    def pop(self, now: float) -> str:
        best = max(self.waiting, key=lambda one: (one[0] / 5 * (now - one[1] + HEAD_START), one[0], -one[1]))
        self.waiting.remove(best)
        return best[2]


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.sampled_from(["push", "pop"]), st.integers(1, 5), st.integers(0, 40_000)), max_size=40),
)
def test_a_user_s_tasks_follow_the_model(redis: Redis, queue: FairQueue, steps: list[tuple[str, int, int]]) -> None:
    redis.flushall()
    oracle, now = Oracle(), NOW
    for what, priority, passes in steps:
        now += passes + 1
        if what == "push":
            made = task("a", priority)
            queue.push(made, now=now)
            oracle.waiting.append((priority, now, made.task_id))
        elif oracle.waiting:
            assert pop(queue, now, lease=1e8).task_id == oracle.pop(now)


class TestComingBack:
    """A task that was leased and comes back has its earlier place again, in whichever order tasks come back."""

    @staticmethod
    def _rest(queue: FairQueue, now: float) -> list[str]:
        return [lease.task_id for lease in queue.pop_batch(1000, "again", now=now)]

    @pytest.mark.parametrize("priority", [3, 6])
    @pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 2, 0], [2, 0, 1]])
    def test_tasks_released_one_by_one_stay_in_order(self, queue: FairQueue, priority: int, order: list[int]) -> None:
        ids = push_many(queue, "a", 5, priority=priority)
        leases = [queue.pop(f"w{n}", now=NOW) for n in range(3)]
        for number in order:
            lease = leases[number]
            assert lease is not None
            queue.release(lease, now=NOW + 1)
        assert self._rest(queue, NOW + 2) == ids

    def test_tasks_whose_leases_end_keep_their_order_over_slices_of_a_sweep(self, queue: FairQueue) -> None:
        ids = push_many(queue, "a", 260, priority=6)
        queue.pop_batch(250, "w", lease=10, now=NOW)
        sweep_all(queue, NOW + 20)
        assert self._rest(queue, NOW + 21) == ids

    def test_tasks_of_a_dead_worker_keep_their_order(self, queue: FairQueue) -> None:
        ids = push_many(queue, "a", 900, priority=6)
        queue.pop_batch(800, "w", now=NOW)
        queue.release_worker("w", now=NOW + 1)
        assert self._rest(queue, NOW + 2) == ids

    def test_tasks_that_are_released_again_and_again_keep_their_order(self, queue: FairQueue) -> None:
        ids = push_many(queue, "a", 40, priority=6)
        chance = random.Random(7)
        for step in range(30):
            leases = queue.pop_batch(chance.randint(1, 30), "w", now=NOW + step)
            assert [lease.task_id for lease in leases] == ids[: len(leases)]
            chance.shuffle(leases)
            while leases:
                some = [leases.pop() for _ in range(min(len(leases), chance.randint(1, 9)))]
                queue.settle([Outcome.release(lease) for lease in some], now=NOW + step)
        assert self._rest(queue, NOW + 60) == ids
        assert queue.check_invariants() == []

    def test_a_released_task_returns_ahead_of_tasks_that_came_later(self, queue: FairQueue) -> None:
        """One whose retry is due stands at the end, though it was handed out before."""
        first, second, third = push_many(queue, "a", 3, priority=6)
        queue.settle([Outcome.fail(pop(queue), "x", delay=1)], now=NOW)
        lease = queue.pop("w", now=NOW)
        queue.sweep(now=NOW + 5)
        assert lease is not None
        queue.release(lease, now=NOW + 6)
        assert self._rest(queue, NOW + 7) == [second, third, first]


def test_batches_are_ordered_as_single_pops(queue: FairQueue) -> None:
    chance, oracle = random.Random(3), Oracle()
    for i in range(200):
        made = task("a", chance.randint(1, 5))
        queue.push(made, now=NOW + i * 300)
        oracle.waiting.append((made.priority, NOW + i * 300, made.task_id))
    now = NOW + 90_000
    assert [lease.task_id for lease in queue.pop_batch(200, "w", now=now)] == [oracle.pop(now) for _ in range(200)]


def test_a_stream_of_high_priorities_does_not_starve_low_ones(queue: FairQueue) -> None:
    low = queue.push(task("a", Priority.VERY_LOW), now=NOW).task_id
    now, started = NOW, ""
    # The bound with others that wait no time at all: 5 × (0 + head start) − head start = 24 h.
    while started != low and now - NOW <= 5 * HEAD_START - HEAD_START:
        now += 60
        queue.push(task("a", Priority.VERY_HIGH), now=now)
        started = pop(queue, now, lease=1e8).task_id
    assert started == low


def test_a_scheduled_task_does_not_block_ready_tasks_of_lower_priority(queue: FairQueue) -> None:
    later = queue.push(task("a", 6, execute_after=NOW + 100), now=NOW).task_id
    ready = queue.push(task("a", 1), now=NOW).task_id
    assert pop(queue, lease=1e6).task_id == ready
    assert queue.pop("w", now=NOW + 99.9) is None
    assert pop(queue, NOW + 100).task_id == later


def test_the_wait_of_a_scheduled_task_counts_from_its_due_time(queue: FairQueue) -> None:
    queue.push(task("a", 3, execute_after=NOW + 10, task_id="due"), now=NOW)
    queue.push(task("a", 3, task_id="pushed later"), now=NOW + 20)
    assert [lease.task_id for lease in queue.pop_batch(2, "w", now=NOW + 30)] == ["due", "pushed later"]


@pytest.mark.parametrize("how", ["pop", "sweep", "batch"])
def test_a_task_that_did_not_start_before_it_expired_is_a_dead_letter(queue: FairQueue, how: str) -> None:
    queue.push_batch([task("a", expires_at=NOW + 5, task_id="old"), task("a", expires_at=NOW + 50)], now=NOW)
    if how == "sweep":
        assert queue.sweep(now=NOW + 6).expired == 1
    else:
        assert len(queue.pop_batch(1 if how == "pop" else 9, "w", now=NOW + 6)) == 1
    assert queue.get_task("old").state is TaskState.FAILED
    assert queue.dlq.list().items[0].failure_type.value == "expired"


@pytest.mark.parametrize("how", ["released", "its lease ended"])
def test_a_task_that_was_started_in_time_does_not_expire(queue: FairQueue, how: str) -> None:
    queue.push(task("a", task_id="t", expires_at=NOW + 10), now=NOW)
    lease = pop(queue, NOW + 1, lease=5)
    if how == "released":
        queue.release(lease, now=NOW + 11)
    queue.sweep(now=NOW + 40)
    assert queue.get_task("t").state is TaskState.QUEUED
    assert queue.pop("w", now=NOW + 41) is not None
    assert queue.check_invariants() == []


def test_a_task_s_score_is_the_documented_one() -> None:
    made = Task.create("u", Priority.VERY_HIGH, None).model_copy(update={"created_at": 1000.0})
    assert calculate_score(made, 1100) == 1100
    assert calculate_score(made.model_copy(update={"priority": Priority.VERY_LOW}), 1100) == pytest.approx(1020)
    with pytest.raises(ValueError, match="no weight"):
        _ = Priority.CRITICAL.weight
    with pytest.raises(ValueError, match=r"from 1 .* to 6"):
        Priority.from_int(7)
