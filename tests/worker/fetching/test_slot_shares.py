"""Tests of the slots that each queue of a worker gets, with real planners in a simulation with computed time."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count, cycle

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from django_fairque.engine.model.lease import Lease
from django_fairque.engine.model.outcome import Outcome, Settled, ShardHead
from django_fairque.engine.sharding.shard_scheduler import FairShardOrder, ShardScheduler
from django_fairque.worker.fetching.fetch_planner import UNANSWERED_CALL_SECONDS, FetchCall, FetchPlanner, ShardTurn
from tests.worker.fetching.planners import answer, budget_of, lease, planned

ROUND_TRIP = 0.001
TASK_OVERHEAD = 0.00002
"""Seconds that a slot needs for a task that does nothing."""


@dataclass(eq=False)
class QueuedTask:
    run_time: float
    pushed_at: float = 0.0
    waiting_before: int = 0
    """Tasks of its queue that had not started when it was pushed."""
    fetched_before: int = 0
    """Tasks of other queues that the worker had fetched when it was pushed, if it was their turn."""
    started_at: float = math.nan

    @property
    def ended_at(self) -> float:
        return self.started_at + self.run_time + TASK_OVERHEAD


@dataclass(eq=False)
class SimulatedQueue:
    """A queue on its server, its planner, and the state of the planner's threads."""

    planner: FetchPlanner
    endless: Iterator[float] | None = None
    """Run times of a queue that always has tasks."""
    tasks: deque[QueuedTask] = field(default_factory=deque)
    has_marker: bool = False
    is_waited_for: bool = False
    is_calling: bool = False
    alarm: int = 0
    """The number of the last alarm of its thread; earlier ones are void."""
    ends: list[float] = field(default_factory=list)


class World:
    """One worker with a planner for each queue, the servers of the queues, and a clock. Nothing in it runs in parallel."""

    def __init__(self, slots: int, endless: Sequence[Sequence[float] | None]) -> None:
        self.now = 0.0
        self.budget = budget = budget_of(slots)
        self.queues = [
            SimulatedQueue(FetchPlanner(index, budget), None if times is None else cycle(times))
            for index, times in enumerate(endless)
        ]
        self.idle = list(range(slots))
        self.last_queue = list(range(slots))
        """As `Slot._last_queue`."""
        self.longest_idle = 0.0
        self._idle_since = dict.fromkeys(range(slots), 0.0)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._leased: dict[int, QueuedTask] = {}
        for queue in self.queues:
            self.after(0.0, partial(self._go_on, queue))

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), action))

    def run_until(self, moment: float) -> None:
        while self._events and self._events[0][0] <= moment:
            self.now, _, action = heapq.heappop(self._events)
            action()
        self.now = moment

    def push(self, queue: SimulatedQueue, run_time: float) -> QueuedTask:
        last = {id(other): self.budget.last_leases.get(other.planner.turn.scheduler, -1) for other in self.queues}
        earlier = [other.planner for other in self.queues if last[id(other)] < last[id(queue)]]
        fetched_before = sum(planner.occupied_slots for planner in earlier)
        task = QueuedTask(run_time, self.now, len(queue.tasks) + len(queue.planner.buffer), fetched_before)
        queue.tasks.append(task)
        queue.has_marker = True
        self._wake_waiting(queue)
        return task

    # --- the server ---

    def _wake_waiting(self, queue: SimulatedQueue) -> None:
        if queue.is_waited_for and queue.has_marker:
            queue.is_waited_for = queue.has_marker = False
            self.after(ROUND_TRIP / 2, partial(self._end_wait, queue, woken=True))

    def _begin_wait(self, queue: SimulatedQueue) -> None:
        queue.is_waited_for = True
        self._wake_waiting(queue)

    def _serve(self, queue: SimulatedQueue, call: FetchCall) -> None:
        leases: list[Lease] = []
        given_back = [self._leased.pop(outcome.lease.token) for outcome in call.outcomes if outcome.kind == "release"]
        queue.tasks.extendleft(reversed(given_back))
        while len(leases) < call.fetch and (queue.tasks or queue.endless is not None):
            task = queue.tasks.popleft() if queue.tasks else QueuedTask(next(queue.endless or iter(())))
            leases.append(lease(user=f"user of {queue.planner.index}"))
            self._leased[leases[-1].token] = task
        if call.woken and queue.tasks:
            queue.has_marker = True
            self._wake_waiting(queue)
        self.after(ROUND_TRIP / 2, partial(self._end_call, queue, call, leases))

    # --- threads of the worker ---

    def _notify(self, queue: SimulatedQueue) -> None:
        if not queue.is_calling:
            self.after(0.0, partial(self._go_on, queue))

    def _notify_wanting(self) -> None:
        for queue in self.queues:
            if queue.planner.wants_tasks:
                self._notify(queue)

    def _notify_after_call(self) -> None:
        for queue in self.queues:
            if queue.planner.looks_after_calls:
                self._notify(queue)

    def _go_on(self, queue: SimulatedQueue) -> None:
        planner = queue.planner
        if queue.is_calling:
            return
        call = planner.next_call(self.now)
        if call is not None:
            queue.is_calling = True
            self.after(ROUND_TRIP / 2, partial(self._serve, queue, call))
            return
        seconds = planner.plan_wait(self.now)
        if seconds is not None:
            self.after(ROUND_TRIP / 2, partial(self._begin_wait, queue))
            self.after(seconds, partial(self._end_wait, queue, woken=False))
        queue.alarm = number = next(self._numbers)
        # In this world no time passes by itself: without a pause, a rounding error could make a thread spin.
        self.after(max(1e-6, planner.seconds_until_due(self.now)), partial(self._ring, queue, number))

    def _ring(self, queue: SimulatedQueue, number: int) -> None:
        if number == queue.alarm:
            self._go_on(queue)

    def _end_wait(self, queue: SimulatedQueue, *, woken: bool) -> None:
        if woken or queue.is_waited_for:
            queue.is_waited_for = False
            queue.planner.wait_ended(woken=woken)
            self._notify(queue)

    def _end_call(self, queue: SimulatedQueue, call: FetchCall, leases: list[Lease]) -> None:
        queue.is_calling = False
        answer(queue.planner, call, leases, self.now)
        for slot in list(self.idle):
            if self._take(slot):
                self.idle.remove(slot)
                self.longest_idle = max(self.longest_idle, self.now - self._idle_since[slot])
        self._notify_after_call()
        self._notify(queue)

    # --- slots ---

    def _take(self, slot: int) -> bool:
        for _ in self.queues:
            self.last_queue[slot] += 1
            queue = self.queues[self.last_queue[slot] % len(self.queues)]
            if queue.planner.buffer:
                work = queue.planner.buffer.popleft()
                assert isinstance(work, Lease)
                task = self._leased.pop(work.token)
                task.started_at = self.now
                self.after(task.run_time + TASK_OVERHEAD, partial(self._end_task, slot, queue, work, task))
                return True
        return False

    def _end_task(self, slot: int, queue: SimulatedQueue, work: Lease, task: QueuedTask) -> None:
        queue.ends.append(self.now)
        queue.planner.outcomes.append(Outcome.finish(work, took=task.run_time + TASK_OVERHEAD))
        if queue.planner.should_notify:
            self._notify(queue)
        if not self._take(slot):
            self.idle.append(slot)
            self._idle_since[slot] = self.now
            self._notify_wanting()


def latest_start(task: QueuedTask, others: SimulatedQueue) -> float:
    """The next end of a task of the ``others``, as far as the worker can know of the task by then, plus one round trip, or
    two if another call for its queue is on its way.

    A task that comes while others of its queue wait takes a later end. A worker knows of a task after a round trip, or two
    if it has just looked and found nothing. A task that comes at the turn of another queue may wait for all tasks that the worker
    has fetched for that queue: a known limit of long tasks behind short ones, since a queue has one turn for each fetch.
    """
    ends = sorted(end for end in others.ends if end > task.pushed_at + 2 * ROUND_TRIP)
    place = task.waiting_before + task.fetched_before
    if len(ends) <= place and task.fetched_before:
        return math.inf
    assert len(ends) > place, "the world ended too early"
    return ends[place] + 2 * ROUND_TRIP + TASK_OVERHEAD


RUN_TIMES = st.one_of(
    st.lists(st.floats(0, 1), min_size=1, max_size=12),
    st.lists(st.floats(0, 0.01), min_size=1, max_size=12),
    st.sampled_from([0.0, 0.0002, 0.005, 0.05, 0.2, 1.0]).map(lambda run_time: [run_time]),
)
"""Run times of the tasks of the endless queue: from 0 to 1 s, many of them short, or all equal."""


@example(  # the other queue had no lease for a moment when this one found nothing
    slots=1, run_times=[0.03125, 0.0, 0.0, 0.015625], other_run_times=[0.0], is_first=False, pauses=[1.0, 0.0, 0.0, 0.0]
)
@example(slots=1, run_times=[0.0, 0.5], other_run_times=[0.0], is_first=False, pauses=[0.0, 0.0, 0.0, 1.0])
@settings(max_examples=40)
@given(
    slots=st.sampled_from([1, 4]),
    run_times=RUN_TIMES,
    other_run_times=st.lists(st.floats(0, 1), min_size=1, max_size=3),
    is_first=st.booleans(),
    pauses=st.lists(st.floats(0, 1), min_size=4, max_size=8),
)
def test_a_queue_below_its_share_gets_the_next_slot(
    slots: int, run_times: list[float], other_run_times: list[float], is_first: bool, pauses: list[float]
) -> None:
    """One queue always has tasks; into the other one comes a task now and then."""
    world = World(slots, [None, run_times] if is_first else [run_times, None])
    light, endless = world.queues if is_first else reversed(world.queues)
    pace = sum(run_times) / len(run_times)
    tasks: list[QueuedTask] = []
    other_times = cycle(other_run_times)
    world.run_until(10 * ROUND_TRIP + 2 * pace)
    for pause in pauses:
        world.run_until(world.now + 5 * ROUND_TRIP + 3 * pace * pause)
        if len(tasks) == len(light.ends):
            tasks.append(world.push(light, min(next(other_times), 5 * pace)))
    world.run_until(world.now + 5 * max(run_times) + 10 * ROUND_TRIP)
    assert tasks
    for task in tasks:
        assert task.started_at <= latest_start(task, endless) + 1e-9
    assert world.longest_idle <= 4 * ROUND_TRIP, "slots for the other queue were kept free for too long"


@settings(max_examples=40)
@given(
    slots=st.sampled_from([2, 4, 5]),
    run_times=RUN_TIMES,
    pushes=st.lists(
        st.tuples(st.floats(0, 1), st.lists(st.floats(0, 1), min_size=1, max_size=3)), min_size=4, max_size=12
    ),
)
@example(  # a lease that the first queue fetched ahead took the slot
    slots=4,
    run_times=[0.05],
    pushes=[
        (0.28, [0.007, 0.076, 0.088]),
        (0.82, [0.009, 0.001, 0.062]),
        (0.85, [0.177]),
        (0.31, [0.01, 0.781]),
        (0.83, [0.004]),
    ],
)
def test_a_queue_below_its_share_with_several_tasks_gets_each_slot_that_becomes_free(
    slots: int, run_times: list[float], pushes: list[tuple[float, list[float]]]
) -> None:
    """The bound of one task, from the moment when the worker has known for a round trip that the queue is below its share."""
    world = World(slots, [run_times, None])
    endless, light = world.queues
    pace = max(0.002, sum(run_times) / len(run_times))
    world.run_until(10 * ROUND_TRIP + 2 * pace)
    tasks: list[QueuedTask] = []
    for pause, lengths in pushes:
        world.run_until(world.now + 5 * ROUND_TRIP + 3 * pace * pause)
        tasks += [world.push(light, min(length, 5 * pace)) for length in lengths]
    world.run_until(world.now + 5 * max(*run_times, pace) + 10 * ROUND_TRIP)
    for end in endless.ends:
        known, latest = end - 2 * ROUND_TRIP, end + 2 * ROUND_TRIP + TASK_OVERHEAD
        if latest > world.now:
            continue
        used = sum(task.started_at <= end and not task.ended_at <= known for task in tasks)
        waits = any(task.pushed_at <= known and not task.started_at <= latest for task in tasks)
        if waits and used < slots // 2:
            assert any(end <= task.started_at <= latest for task in tasks)


@pytest.mark.thorough
@settings(max_examples=10)
@given(slots=st.sampled_from([1, 2, 4, 5]), run_times=st.tuples(*[st.sampled_from([0.0, 0.002, 0.05, 0.3])] * 3))
def test_every_queue_with_tasks_gets_slots(slots: int, run_times: tuple[float, ...]) -> None:
    """Three queues always have tasks, each of another length."""
    world = World(slots, [[run_time] for run_time in run_times])
    world.run_until(0.3)
    before = [len(queue.ends) for queue in world.queues]
    seconds = 0.2 + 3 * sum(run_times)
    world.run_until(0.3 + seconds)
    for queue, ended, run_time in zip(world.queues, before, run_times, strict=True):
        # The slots of its share, with a round trip and a wait for the longest task of another queue after each task.
        rounds = seconds / (run_time + max(run_times) + 3 * ROUND_TRIP)
        assert len(queue.ends) - ended >= math.floor(max(1, slots // 3) * rounds * 0.4)
        assert len(queue.ends) > ended


def two_planners(slots: int = 2, shards: ShardScheduler | None = None) -> tuple[FetchPlanner, FetchPlanner]:
    """Two planners of one worker: of two queues, or of the two shards of a queue. The first runs a task in each slot."""
    budget = budget_of(slots)
    first, second = (
        FetchPlanner(index, budget, turn=None if shards is None else ShardTurn(shards, index)) for index in range(2)
    )
    answer(second, planned(second, 0.0), [], 0.0)
    answer(first, planned(first, 0.0), [lease() for _ in range(slots)], 0.0)
    first.buffer.clear()  # the slots have taken the leases
    return first, second


def test_a_busy_worker_waits_for_tasks_of_a_queue_below_its_share() -> None:
    first, second = two_planners()
    assert first.plan_wait(0.0) is None, "the first queue has tasks"
    assert second.plan_wait(0.0) == 5.0
    second.wait_ended(woken=True)
    call = planned(second, 1.0)
    assert (call.woken, call.fetch) == (True, 0), "other workers may have a free slot"
    answer(second, call, [], 1.0)
    assert second.plan_wait(1.0) is None, "the planner knows already that a task is there"
    end_one(first)
    assert planned(first, 2.0).fetch == 0
    assert planned(second, 2.0).fetch == 1


def test_no_call_waits_at_a_queue_that_has_used_its_share_of_the_slots() -> None:
    first, second = two_planners(slots=4)
    for _ in range(4):
        end_one(first)
    second.exhausted = False
    answer(first, planned(first, 0.5), [lease(), lease()], 0.5)
    answer(second, planned(second, 0.5), [lease(), lease()], 0.5)
    second.exhausted = True
    assert second.plan_wait(0.5) is None


def test_a_wait_without_a_marker_ends_with_a_fetch_at_the_next_end() -> None:
    """The marker may be lost, as after a crash of the server."""
    first, second = two_planners()
    assert second.plan_wait(0.0) == 5.0
    second.wait_ended(woken=False)
    assert second.next_call(5.0) is None
    end_one(first)
    assert planned(first, 6.0).fetch == 0
    assert planned(second, 6.0).fetch == 1


def test_a_delayed_task_of_the_second_queue_starts_when_the_next_task_ends() -> None:
    first, second = two_planners()
    end_one(first)
    second.exhausted = False
    assert planned(first, 0.1).fetch == 0
    answer(second, planned(second, 0.1), [], 0.1, look_at=0.4)
    answer(first, first.pending_calls[0], [], 0.1)
    answer(first, planned(first, 0.1), [lease()], 0.1)
    first.buffer.clear()
    assert second.next_call(0.2) is None
    assert second.seconds_until_due(0.2) <= 0.2001
    assert second.next_call(0.41) is None
    assert second.seconds_until_due(0.41) > 0.1, "its thread would spin"
    end_one(first)
    assert planned(first, 0.5).fetch == 0
    assert planned(second, 0.5).fetch == 1


def test_no_slot_is_kept_for_a_queue_whose_server_does_not_answer() -> None:
    first, second = two_planners()
    second.wait_ended(woken=True)
    planned(second, 1.0)
    end_one(first)
    report = planned(first, 1.1)
    assert report.fetch == 0
    answer(first, report, [], 1.1)
    assert first.next_call(1.1) is None
    assert first.seconds_until_due(1.1) <= UNANSWERED_CALL_SECONDS
    assert planned(first, 1.0 + UNANSWERED_CALL_SECONDS).fetch == 1


def test_a_worker_for_some_users_does_not_try_the_other_queue_at_each_end() -> None:
    budget = budget_of(1, users=("ann",))
    first, second = (FetchPlanner(index, budget) for index in range(2))
    answer(first, planned(first, 0.0), [], 0.0)
    answer(second, planned(second, 0.0), [], 0.0)
    first.exhausted = False
    answer(first, planned(first, 0.0), [lease()], 0.0)
    now, fetches = 0.0, 0
    while now < 1.0:  # a task each 5 ms, and only others' tasks in the second queue
        now += 0.005
        end_one(first)
        if second.plan_wait(now) is not None:
            second.wait_ended(woken=True)
        for planner in (second, first, second, first):
            call = planner.next_call(now)
            if call is not None:
                fetches += bool(planner is second and call.fetch)
                answer(planner, call, [lease() for _ in range(call.fetch)] if planner is first else [], now)
        planner.buffer.clear()
    assert 4 <= fetches <= 16


def test_a_newcomer_on_an_idle_shard_of_a_busy_worker_is_noticed() -> None:
    first, second = two_planners(shards=ShardScheduler([FairShardOrder(2)]))
    give(first, 50.0)
    assert second.plan_wait(0.0) == 5.0
    second.wait_ended(woken=True)
    call = planned(second, 1.0)
    assert (call.woken, call.fetch) == (True, 0)
    second.call_succeeded(call, Settled([], [], 1.0, None, 3.0, (ShardHead(3.0, 0),)), 1.0)
    end_one(first)
    assert planned(first, 2.0).fetch == 0
    assert planned(second, 2.0).fetch == 1


def test_the_only_queue_is_not_waited_for_while_all_slots_run() -> None:
    """A wait costs a command, and each end of a task is followed by a fetch anyway."""
    budget = budget_of(2)
    planner = FetchPlanner(0, budget)
    answer(planner, planned(planner, 0.0), [lease(), lease()], 0.0)
    planner.exhausted = True
    assert planner.plan_wait(0.0) is None


def end_one(planner: FetchPlanner) -> None:
    """One of the running tasks of the planner ends."""
    planner.outcomes.append(Outcome.finish(lease(), took=1.0))


def give(planner: FetchPlanner, place: float) -> None:
    """The shard of the planner reports the place of its next user."""
    planner.turn.scheduler.record_reply(planner.turn.index, Settled([], [], 0.0, None, 0.0, (ShardHead(place, 1),)))
