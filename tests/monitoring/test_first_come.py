"""Tests of the replay of first come, first served, with examples computed by hand and with properties of any tasks."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import Redis

from django_fairque.engine.model.errors import TaskValidationError
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.monitoring import first_come
from django_fairque.monitoring.first_come import (
    FirstComeComparison,
    ServedTask,
    compare_waits,
    first_come_waits,
    replay,
)
from tests.counting import commands
from tests.engine.conftest import pop, task


@pytest.fixture
def queue(redis: Redis) -> FairQueue:
    return FairQueue(redis, config=QueueConfig(fair_by="tasks", retry_jitter=0))


def run(arrived: float, took: float, user: str = "acme", *, waited: float = 0.0) -> ServedTask:
    return ServedTask(user, arrived, arrived + waited, arrived + waited + took)


def waits(runs: list[ServedTask], slots: int, opened: float = 0.0) -> list[float]:
    return [wait for _, wait in replay(runs, slots, opened)]


def test_a_served_task_knows_its_wait_and_its_length() -> None:
    one = ServedTask("acme", arrived=10.0, started=12.0, ended=15.0)
    assert (one.waited, one.took) == (2.0, 3.0)


def test_a_clock_that_is_a_little_behind_gives_no_negative_times() -> None:
    one = ServedTask("acme", arrived=10.0, started=9.9, ended=9.8)
    assert (one.waited, one.took) == (0.0, 0.0)


def test_a_replay_with_one_slot_runs_tasks_one_after_the_other() -> None:
    assert waits([run(0, 2), run(0, 3), run(1, 1)], slots=1) == [0, 2, 4]


def test_a_replay_with_two_slots_runs_two_tasks_at_once() -> None:
    # Slot one: 0-5, 5-6. Slot two: 0-1, 1-3, 3-4.
    assert waits([run(0, 5), run(0, 1), run(0, 2), run(0, 1), run(0, 1)], slots=2) == [0, 0, 1, 3, 4]


def test_a_replay_starts_a_task_at_once_in_an_idle_slot() -> None:
    assert waits([run(0, 1), run(10, 1), run(10.5, 1)], slots=1) == [0, 0, 0.5]


def test_a_replay_starts_no_task_before_the_slots_open() -> None:
    assert waits([run(0, 1), run(1, 1), run(9, 1)], slots=1, opened=4) == [4, 4, 0]


def test_a_replay_orders_tasks_by_arrival_and_not_by_input_or_start() -> None:
    late, early = run(1, 1, "late"), run(0, 5, "early", waited=100)
    assert [(served.user, wait) for served, wait in replay([late, early], slots=1)] == [("early", 0), ("late", 4)]


def test_a_replay_keeps_the_order_of_simultaneous_tasks() -> None:
    users = [f"user{number}" for number in range(50)]
    assert [served.user for served, _ in replay([run(0, 1, user) for user in users], slots=3)] == users


@pytest.mark.parametrize("slots", [1, 2, 7])
def test_a_replay_never_overfills_a_slot_nor_leaves_one_idle_while_a_task_waits(slots: int) -> None:
    dice = random.Random(slots)
    runs = [run(dice.randrange(50_000), dice.randrange(1, 2_000)) for _ in range(300)]
    spans = [(served.arrived + wait, served.arrived + wait + served.took, wait) for served, wait in replay(runs, slots)]
    for start, _, wait in spans:
        busy = sum(other_start <= start < end for other_start, end, _ in spans)
        assert busy <= slots
        if wait > 0:
            just_before = sum(other_start < start <= end for other_start, end, _ in spans)
            assert just_before >= slots


def test_a_replay_without_a_slot_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1, got 0"):
        replay([], slots=0)


CONTENDED = [
    ServedTask("noisy", 0, 0, 1),
    ServedTask("quiet", 0.5, 1, 2),
    ServedTask("noisy", 0, 2, 3),
    ServedTask("noisy", 0, 3, 4),
]
"""One slot. First come, first served, noisy would have started at 0, 1 and 2, and quiet at 3."""


def by_user(tasks: list[ServedTask], begin: float = 0, slots: int = 1) -> dict[str, tuple[float, float]]:
    return {user.user_id: (user.waited, user.first_come) for user in compare_waits(tasks, begin, slots)}


def fair_minute(seed: int, slots: int = 16) -> list[ServedTask]:
    """A minute in which a noisy user sends 300 tasks every ten seconds, and 20 others send some; users take turns."""
    chance = random.Random(seed)
    arriving = [("noisy", burst * 10.0) for burst in range(7) for _ in range(300)]
    arriving += [(f"user{number % 20}", chance.random() * 70) for number in range(600)]
    arriving.sort(key=lambda arrival: arrival[1], reverse=True)
    waiting: dict[str, list[float]] = {}
    free_at, ran = [0.0] * slots, []
    while arriving or waiting:
        slot = free_at.index(min(free_at))
        now = free_at[slot] if waiting else max(free_at[slot], arriving[-1][1])
        while arriving and arriving[-1][1] <= now:
            user, arrived = arriving.pop()
            waiting.setdefault(user, []).append(arrived)
        user, some = next(iter(waiting.items()))
        del waiting[user]
        free_at[slot] = now + chance.expovariate(1 / 0.38)
        ran.append(ServedTask(user, some.pop(0), now, free_at[slot]))
        if some:
            waiting[user] = some  # the user is now behind all others
    return sorted((run for run in ran if 10 <= run.ended <= 70), key=lambda run: run.ended)


def test_a_sample_of_tasks_shows_nearly_the_same_saved_waiting_time_as_all_tasks() -> None:
    def saved(tasks: list[ServedTask]) -> float:
        return sum(user.saved * user.tasks for user in compare_waits(tasks, 10, 16) if user.user_id != "noisy")

    parts = []
    for seed in range(8):
        tasks = fair_minute(seed)
        sample = [task for first in range(seed, len(tasks), 75) for task in tasks[first : first + 5]]
        count = len(tasks) / len(sample)
        parts.append(saved([replace(served, count=count) for served in sample]) / saved(tasks))
    assert 0.7 < sum(parts) / len(parts) < 1.3


class TestComparison:
    def test_a_quiet_user_waits_less_than_first_come_first_served(self) -> None:
        assert by_user(CONTENDED) == {"quiet": (0.5, 2.5), "noisy": (pytest.approx(5 / 3), pytest.approx(1))}

    def test_the_user_with_the_largest_difference_is_listed_first(self) -> None:
        quiet, noisy = compare_waits(CONTENDED, 0, 1)
        assert (quiet.tasks, quiet.saved) == (1, 2)
        assert noisy.tasks == 3
        assert noisy.saved == pytest.approx(-2 / 3)

    def test_time_without_workers_is_no_delay_by_others(self) -> None:
        late = [
            ServedTask(served.user, served.arrived, served.started + 100, served.ended + 100) for served in CONTENDED
        ]
        assert by_user(late, 50) == {"quiet": (100.5, 102.5), "noisy": (pytest.approx(305 / 3), pytest.approx(101))}

    def test_no_wait_differs_if_tasks_started_in_the_order_of_their_arrival(self) -> None:
        tasks = [ServedTask("ann", 0, 0, 5), ServedTask("bob", 1, 5, 7), ServedTask("ann", 2, 7, 8)]
        assert all(user.saved == 0 for user in compare_waits(tasks, 0, 1))

    def test_a_limited_user_delays_no_other_while_slots_are_free(self) -> None:
        limited = [ServedTask("limited", 0, start, start + 1) for start in range(5)]
        others = [ServedTask("other", start + 0.5, start + 0.5, start + 1) for start in range(5)]
        assert all(user.saved == 0 for user in compare_waits([*limited, *others], 0, 4))

    def test_tasks_that_started_earlier_occupy_a_slot_until_they_end(self) -> None:
        running = ServedTask("earlier", -50, -10, 3)
        tasks = [ServedTask("noisy", 0, 4, 6), ServedTask("quiet", 1, 3, 4)]
        assert by_user([running, *tasks]) == {"quiet": (2, 4), "noisy": (4, 3)}

    @pytest.mark.parametrize("tasks", [[], [run(0, 1)], [run(0, 1, waited=9), run(1, 1)]])
    def test_the_waits_of_a_single_user_are_not_compared(self, tasks: list[ServedTask]) -> None:
        assert compare_waits(tasks, 0, 1) == []

    def test_a_sampled_task_counts_for_several_tasks(self) -> None:
        tasks = [ServedTask("noisy", 0, 2, 3, count=4), ServedTask("quiet", 1, 1, 2, count=2)]
        quiet, noisy = sorted(compare_waits(tasks, 0, 1), key=lambda user: user.tasks)
        assert (quiet.tasks, noisy.tasks) == (2, 4)
        # 6 seconds of work in 2 seconds: 3 slots.
        assert all(user.saved == 0 for user in (quiet, noisy))

    @given(
        tasks=st.lists(st.tuples(st.integers(0, 30), st.sampled_from("abc")), max_size=40),
        ranks=st.permutations("abc"),
        slots=st.integers(1, 3),
    )
    def test_saved_and_added_waits_are_equal_if_all_tasks_take_equally_long(
        self, tasks: list[tuple[int, str]], ranks: list[str], slots: int
    ) -> None:
        ran = serve(tasks, ranks, slots, took=4)
        found = compare_waits(ran, 0, slots)
        assert sum(user.tasks * user.saved for user in found) == pytest.approx(0, abs=1e-6)
        waited = {user: [run.waited for run in ran if run.user == user] for user in "abc"}
        assert all(user.waited == pytest.approx(sum(waited[user.user_id]) / user.tasks) for user in found)
        # The replay in the order of the starts is what really happened, so the comparison is exact.
        first = replay(ran, slots)
        expected = {user: [wait for served, wait in first if served.user == user] for user in "abc"}
        assert all(user.first_come == pytest.approx(sum(expected[user.user_id]) / user.tasks) for user in found)


def serve(tasks: list[tuple[int, str]], ranks: list[str], slots: int, took: int) -> list[ServedTask]:
    """The tasks (arrival, user), served by slots that always take one of the first user in ``ranks``."""
    free, waiting, ran = [0] * slots, sorted(tasks), []
    while waiting:
        free.sort()
        now = max(free[0], waiting[0][0])
        chosen = min(
            (candidate for candidate in waiting if candidate[0] <= now),
            key=lambda candidate: (ranks.index(candidate[1]), candidate[0]),
        )
        waiting.remove(chosen)
        ran.append(ServedTask(chosen[1], chosen[0], now, now + took))
        free[0] = now + took
    return ran


class TestQueue:
    def serve_one(self, queue: FairQueue, user: str, start: float, took: float) -> None:
        queue.finish(pop(queue, start, users=[user]), took=took, now=start + took)

    def contend(self, queue: FairQueue, now: float) -> FirstComeComparison:
        """One slot: noisy pushes six tasks of 5 seconds, then quiet one that starts second."""
        queue.push_batch([task("noisy") for _ in range(6)], now=now - 40)
        queue.push(task("quiet"), now=now - 39)
        for number, user in enumerate(["noisy", "quiet", "noisy", "noisy", "noisy"]):
            self.serve_one(queue, user, now - 39 + 5 * number, 5)
        return first_come_waits(queue)

    @pytest.mark.parametrize("shards", [1, 3])
    def test_tasks_that_finished_in_the_last_minute_are_replayed(self, redis: Redis, shards: int) -> None:
        queue = FairQueue(redis, config=QueueConfig(shards=shards))
        found = self.contend(queue, time.time())
        (quiet,), (noisy,) = found.helped, found.delayed
        assert (found.tasks, found.replayed, found.seconds) == (5, 5, 60)
        assert (quiet.user_id, noisy.user_id) == ("quiet", "noisy")
        assert [quiet.waited, quiet.first_come] == pytest.approx([5, 20])
        assert [noisy.waited, noisy.first_come] == pytest.approx([12.25, 8.5])
        assert found.saved_seconds == pytest.approx(15)

    def test_a_running_task_counts_with_its_run_time_so_far(self, queue: FairQueue) -> None:
        now = time.time()
        queue.push_batch([task("noisy"), task("noisy")], now=now - 30)
        queue.push(task("quiet"), now=now - 29)
        for user, at in (("noisy", -30), ("quiet", -20), ("noisy", -10)):
            lease = pop(queue, now + at, users=[user], lease=600)
            if at < -10:
                queue.finish(lease, took=10, now=now + at + 10)
        found = first_come_waits(queue)
        assert [user.user_id for user in found.helped] == ["quiet"]
        assert found.helped[0].saved == pytest.approx(10, abs=2)

    def test_users_do_not_compete_if_every_task_has_a_slot(self, queue: FairQueue) -> None:
        self.contend(queue, time.time())
        found = first_come_waits(queue, slots=8)
        assert (found.helped, found.delayed) == ([], [])

    def test_tasks_that_started_earlier_are_left_out(self, queue: FairQueue) -> None:
        found = self.contend(queue, time.time() - 300)
        assert (found.tasks, found.users) == (0, [])
        assert first_come_waits(FairQueue(queue.client, "empty")).users == []

    @pytest.mark.parametrize("wrong", [0, -1, 1.5, "2", None, 10_001])
    def test_a_wrong_number_of_slots_is_explained(self, queue: FairQueue, wrong: Any) -> None:
        with pytest.raises(TaskValidationError, match="slots must be a whole number"):
            first_come_waits(queue, wrong)

    @pytest.mark.parametrize("finished", [60, 180])
    def test_a_bounded_number_of_tasks_is_read(
        self, queue: FairQueue, redis: Redis, monkeypatch: pytest.MonkeyPatch, finished: int
    ) -> None:
        monkeypatch.setattr(first_come, "MAX_REPLAYED_TASKS", 20)
        now = time.time()
        queue.push_batch([task(f"u{number % 4}") for number in range(finished)], now=now - 30)
        for lease in queue.pop_batch(finished, "w", now=now - 30):
            queue.finish(lease, took=1, now=now - 20)
        found = first_come_waits(queue)
        assert (found.tasks, found.replayed) == (finished, 20)
        assert commands(redis, lambda: first_come_waits(queue)) < 50  # each of the 20 by its record and its head


def test_bulk_tasks_are_replayed_and_in_no_figure(queue: FairQueue) -> None:
    """A nightly job came first and waited for a mail: it is not delayed, because it is expected to wait."""
    now = time.time() - 50
    queue.push_batch([task("nightly", lane="bulk") for _ in range(3)], now=now)
    queue.push(task("ann"), now=now + 1)
    queue.push(task("bob"), now=now + 1)
    for at, user in ((1, "ann"), (11, "bob"), (21, "nightly"), (31, "nightly")):
        lease = pop(queue, now + at)
        assert lease.user_id == user
        queue.finish(lease, took=10, now=now + at + 10)
    comparison = first_come_waits(queue)
    assert {user.user_id: user.tasks for user in comparison.helped} == {"ann": 1, "bob": 1}
    assert comparison.users == comparison.helped
