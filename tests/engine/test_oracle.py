"""Random histories against a small model of the states, with every invariant checked after each step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from django_fairque.engine.errors import StaleLeaseError
from django_fairque.engine.options import QueueConfig
from django_fairque.engine.queue import FairQueue
from django_fairque.engine.records import TaskState

from .conftest import NOW, task

if TYPE_CHECKING:
    from redis import Redis

    from django_fairque.engine.lease import Lease

LEASE = 30.0
DELIVERIES = 3
USERS = st.sampled_from(["a", "b", "*"])


class Model:
    """What the queue should know of one task."""

    def __init__(self, user: str, priority: int, due: float, retries: int) -> None:
        self.user, self.priority, self.due, self.budget = user, priority, due, retries
        self.state = "scheduled" if due > NOW else "queued"
        self.retries = self.deliveries = self.token = 0
        self.lease_end = 0.0


class Histories(RuleBasedStateMachine):
    redis: Redis

    def __init__(self) -> None:
        super().__init__()
        self.redis.flushall()
        self.queue = FairQueue(self.redis, config=QueueConfig(max_deliveries=DELIVERIES, retry_jitter=0))
        self.tasks: dict[str, Model] = {}
        self.leases: list[Lease] = []
        self.paused: set[str] = set()
        self.caps: dict[str, int] = {}
        self.now = NOW

    def catch_up(self) -> None:
        """What time alone has done: promotion of due tasks, ended leases."""
        for model in self.tasks.values():
            if model.state == "scheduled" and model.due <= self.now:
                model.state = "queued"
            elif model.state == "started" and model.lease_end <= self.now:
                model.state = "failed" if model.deliveries >= DELIVERIES else "queued"
                model.token = 0

    @rule(user=USERS, priority=st.integers(1, 6), delay=st.sampled_from([0, 0, 5, 60]), retries=st.integers(0, 2))
    def push(self, user: str, priority: int, delay: int, retries: int) -> None:
        made = task(user, priority, max_retries=retries, execute_after=self.now + delay if delay else None)
        assert self.queue.push(made, now=self.now).accepted
        self.tasks[made.task_id] = Model(user, priority, self.now + delay, retries)
        self.tasks[made.task_id].state = "scheduled" if delay else "queued"

    def servable(self) -> dict[str, int]:
        """How many tasks of each user could be leased now, one after the other."""
        room = {}
        for user in ("a", "b", "*"):
            ready = sum(model.state == "queued" and model.user == user for model in self.tasks.values())
            running = sum(model.state == "started" and model.user == user for model in self.tasks.values())
            room[user] = 0 if user in self.paused else min(ready, max(0, self.caps.get(user, 99) - running))
        return room

    @rule(n=st.integers(1, 4), only=st.none() | USERS)
    def pop(self, n: int, only: str | None) -> None:
        self.catch_up()
        room = self.servable()
        expected = min(n, room[only] if only else sum(room.values()))
        leases = self.queue.pop_batch(n, "w", [only] if only else "*", lease=LEASE, now=self.now)
        assert len(leases) == expected
        for lease in leases:
            model = self.tasks[lease.task_id]
            assert model.state == "queued"
            assert only in (None, model.user)
            better = [
                t for t in self.tasks.values() if t.user == model.user and t.state == "queued" and t.priority == 6
            ]
            assert model.priority == 6 or not better
            model.state, model.token, model.lease_end = "started", lease.token, self.now + LEASE
            model.deliveries += 1
            assert lease.delivery == model.deliveries
        self.leases += leases

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), how=st.sampled_from(["finish", "fail", "die", "release"]))
    def settle(self, data: st.DataObject, how: str) -> None:
        lease = data.draw(st.sampled_from(self.leases))
        model = self.tasks[lease.task_id]
        # A lease that has ended still counts until somebody sweeps: the token decides, not the clock.
        current = self.queue.get_task(lease.task_id).state is TaskState.STARTED and model.token == lease.token
        self.leases.remove(lease)
        try:
            if how == "finish":
                self.queue.finish(lease, now=self.now)
            elif how == "release":
                self.queue.release(lease, now=self.now)
            else:
                self.queue.fail(lease, "x", retry=how == "fail", now=self.now)
        except StaleLeaseError:
            assert not current
            return
        assert current
        model.token = 0
        if how == "finish":
            model.state = "finished"
        elif how == "release":
            model.state, model.deliveries = "queued", model.deliveries - 1
        elif how == "fail" and model.retries < model.budget:
            model.state, model.due = "scheduled", self.now + 2**model.retries
            model.retries, model.deliveries = model.retries + 1, 0
        else:
            model.state = "failed"
        self.catch_up()  # settling starts what is due

    @precondition(lambda self: self.tasks)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        task_id = data.draw(st.sampled_from(sorted(self.tasks)))
        model = self.tasks[task_id]
        ended = model.state in ("finished", "failed", "canceled")
        assert self.queue.cancel(task_id, now=self.now) is not ended
        if not ended:
            model.state, model.token = "canceled", 0

    @rule()
    def requeue(self) -> None:
        for entry in self.queue.dlq.list().items:
            self.queue.dlq.requeue(entry.entry_id, now=self.now)
            model = self.tasks[entry.original_task.task_id]
            assert model.state == "failed"
            model.state, model.retries, model.deliveries = "queued", 0, 0

    @rule(passes=st.sampled_from([0.5, 3, 29, 31, 100]))
    def wait(self, passes: float) -> None:
        self.now += passes
        self.queue.sweep(now=self.now)
        self.catch_up()

    @rule(user=USERS)
    def pause_or_resume(self, user: str) -> None:
        (self.queue.user(user).resume if user in self.paused else self.queue.user(user).pause)(now=self.now)
        self.paused ^= {user}

    @rule(user=USERS, cap=st.none() | st.integers(1, 2))
    def cap(self, user: str, cap: int | None) -> None:
        self.queue.user(user).set_max_running(cap, now=self.now)
        self.caps = {**self.caps, user: cap} if cap else {k: v for k, v in self.caps.items() if k != user}

    @rule(user=USERS, weight=st.sampled_from([0.5, 1, 3]))
    def weigh(self, user: str, weight: float) -> None:
        self.queue.user(user).set_weight(weight, now=self.now)

    @invariant()
    def everything_is_where_it_should_be(self) -> None:
        assert self.queue.check_invariants() == []
        known = {task_id: self.queue.get_task(task_id).state.value for task_id in self.tasks}
        assert known == {task_id: model.state for task_id, model in self.tasks.items()}


@pytest.mark.parametrize("part", range(2))
def test_random_histories_agree_with_the_model(redis: Redis, part: int) -> None:
    machine = type("Histories", (Histories,), {"redis": redis})
    run_state_machine_as_test(machine, settings=settings(max_examples=40, stateful_step_count=40, deadline=None))
