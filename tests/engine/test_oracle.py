"""Random histories against a small model of the states and of organizations, with every invariant checked after each step."""

from __future__ import annotations

import math
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from redis import Redis

from django_fairque.engine.model.errors import DependencyCycleError, StaleLeaseError
from django_fairque.engine.model.lease import Lease
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.queue import FairQueue

from .conftest import NOW, task
from .oracle import ENDED, Known, Oracle
from .server_clock import ServerClock

LEASE = 30.0
DELIVERIES = 4
USERS = st.sampled_from(["a", "b", "*"])
ORGANIZATIONS = st.sampled_from(["g", "*"])
LENGTHS = st.none() | st.sampled_from([20, 40])
"""Seconds until a pause ends."""
POLICIES = st.sampled_from(["wait", "cancel", "run"])


class Histories(RuleBasedStateMachine):
    redis: Redis

    def __init__(self) -> None:
        super().__init__()
        self.redis.flushall()
        # Slices of five: graphs here are resolved in several, as large ones are.
        config = QueueConfig(max_deliveries=DELIVERIES, retry_jitter=0, sweep_batch_size=5)
        self.queue = FairQueue(ServerClock(self.redis), config=config)
        self.oracle = Oracle(LEASE, DELIVERIES)
        self.leases: list[Lease] = []
        self.paused: dict[str, float] = {}
        """Until when."""
        self.caps: dict[str, int] = {}
        self.organization: dict[str, str] = {}
        self.organization_caps: dict[str, int] = {}
        self.organization_paused: dict[str, float] = {}
        self.now = NOW
        """The time of the server's clock."""

    @property
    def time(self) -> float:
        return self.oracle.time(self.now)

    @property
    def tasks(self) -> dict[str, Known]:
        return self.oracle.tasks

    def settle_down(self) -> None:
        """Tell all dependents and start all that is due, in as many slices as that takes."""
        while self.queue.sweep(now=self.now).more:
            pass
        self.oracle.catch_up(self.time)
        for paused in (self.paused, self.organization_paused):
            for name in [name for name, until in paused.items() if until <= self.time]:
                del paused[name]

    def of(self, made: Task) -> Known:
        due = made.execute_after or 0.0
        return Known(
            *(made.task_id, made.user_id, int(made.priority), due, made.max_retries, made.on_dependency_failure),
            set(made.depends_on),
        )

    @rule(user=USERS, priority=st.integers(1, 6), delay=st.sampled_from([0, 0, 5, 60]), retries=st.integers(0, 2))
    def push(self, user: str, priority: int, delay: int, retries: int) -> None:
        made = task(user, priority, max_retries=retries, execute_after=self.now + delay if delay else None)
        assert self.queue.push(made, now=self.now).accepted
        self.oracle.push([self.of(made)], self.time)

    @rule(data=st.data(), size=st.integers(1, 5))
    def push_graph(self, data: st.DataObject, size: int) -> None:
        """New tasks and ids that live again, waiting for each other and for tasks that are there."""
        again = [task_id for task_id, known in self.tasks.items() if known.state in ENDED]
        names = data.draw(st.lists(st.sampled_from(again), max_size=2, unique=True)) if again else []
        names += [f"g{len(self.tasks)}.{i}" for i in range(size)]
        names = data.draw(st.permutations(names))
        graph = [
            task(
                self.tasks[name].user if name in self.tasks else data.draw(USERS),  # another user's id is refused
                task_id=name,
                max_retries=0,
                execute_after=self.now + 5 if data.draw(st.booleans()) and data.draw(st.booleans()) else None,
                depends_on=data.draw(st.lists(st.sampled_from([*self.tasks, *names]), max_size=3)),
                on_dependency_failure=data.draw(POLICIES),
            )
            for name in names
        ]
        known = [self.of(made) for made in graph]
        if self.oracle.cycle(known):
            with pytest.raises(DependencyCycleError):
                self.queue.push_graph(graph, now=self.now)
            return
        assert all(result.accepted for result in self.queue.push_graph(graph, now=self.now))
        self.oracle.push(known, self.time)
        self.settle_down()

    def servable(self) -> dict[str, int]:
        """Return how many tasks of each user could be leased now, one after the other."""
        room = {}
        for user in ("a", "b", "*"):
            ready = sum(known.state == "queued" and known.user == user for known in self.tasks.values())
            running = sum(known.state == "started" and known.user == user for known in self.tasks.values())
            room[user] = 0 if user in self.paused else min(ready, max(0, self.caps.get(user, 99) - running))
        return room

    def startable(self, room: dict[str, int]) -> int:
        """Return how many of these could be leased in all: the free room of an organization bounds its members."""
        total = 0
        for organization in {self.organization.get(user, "") for user in room}:
            mine = sum(number for user, number in room.items() if self.organization.get(user, "") == organization)
            total += 0 if organization in self.organization_paused else min(mine, self.room_in(organization))
        return total

    def room_in(self, organization: str) -> int:
        running = sum(
            known.state == "started" and self.organization.get(known.user) == organization
            for known in self.tasks.values()
        )
        return max(0, self.organization_caps.get(organization, 99) - running)

    @rule(n=st.integers(1, 4), only=st.none() | USERS)
    def pop(self, n: int, only: str | None) -> None:
        self.take(n, only)

    def take(self, n: int, only: str | None) -> None:
        only = None if only == "*" else only  # a list with "*" is everyone
        self.settle_down()
        room = self.servable()
        expected = min(n, self.startable({only: room[only]} if only else room))
        leases = self.queue.pop_batch(n, "w", [only or "*"], lease=LEASE, now=self.now)
        assert len(leases) == expected
        for lease in leases:
            known = self.tasks[lease.task_id]
            assert only in (None, known.user)
            better = [
                task
                for task in self.tasks.values()
                if task.user == known.user and task.state == "queued" and task.priority == 6
            ]
            assert known.priority == 6 or not better
            self.oracle.start(known, lease.token, self.time)
            assert lease.delivery == known.deliveries
        self.leases += leases

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), how=st.sampled_from(["finish", "finish", "fail", "die", "release"]))
    def settle(self, data: st.DataObject, how: str) -> None:
        lease = data.draw(st.sampled_from(self.leases))
        known = self.tasks[lease.task_id]
        # A lease that has ended still counts until somebody sweeps: the token decides, not the clock.
        current = self.queue.get_task(lease.task_id).state is TaskState.STARTED and known.token == lease.token
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
        if how == "finish":
            self.oracle.finish(known, self.time)
        elif how == "release":
            self.oracle.release(known)
        else:
            self.oracle.fail(known, self.time, for_good=how == "die")
        self.settle_down()

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), times=st.integers(1, DELIVERIES), report=st.booleans())
    def crash(self, data: st.DataObject, times: int, report: bool) -> None:
        """The worker dies, and so does who gets the same task next."""
        lease = data.draw(st.sampled_from(self.leases))
        known = self.tasks[lease.task_id]
        for _ in range(times):
            self.settle_down()
            if lease.task_id != known.task_id or known.token != lease.token:
                return
            self.leases.remove(lease)
            if report:
                self.queue.settle([Outcome.crash(lease, "x")], now=self.now)
                self.oracle.crash(known, self.time)
            else:
                self.lose_worker()
            self.settle_down()
            if known.state == "scheduled":
                self.wait(data.draw(st.sampled_from([0.5, known.due - self.time])))
            if not self.startable({known.user: self.servable()[known.user]}):
                return
            self.take(1, known.user)
            lease = self.leases[-1]

    def lose_worker(self) -> None:
        """All that it had, it was running."""
        held = [known for known in self.tasks.values() if known.state == "started"]
        assert self.queue.release_worker("w", [known.token for known in held], now=self.now) == len(held)
        for known in held:
            self.oracle.crash(known, self.time)

    @precondition(lambda self: self.tasks)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        known = self.tasks[data.draw(st.sampled_from(sorted(self.tasks)))]
        assert self.queue.cancel(known.task_id, now=self.now) is (known.state not in ENDED)
        self.oracle.cancel(known, self.time)
        self.settle_down()

    @rule()
    def requeue(self) -> None:
        for entry in self.queue.dlq.list().items:
            self.queue.dlq.requeue(entry.entry_id, now=self.now)
            self.oracle.requeue(self.tasks[entry.original_task.task_id])

    @rule()
    def discard(self) -> None:
        for entry in self.queue.dlq.list(limit=1).items:
            self.queue.dlq.discard(entry.entry_id, now=self.now)
            self.oracle.discard(self.tasks[entry.original_task.task_id], self.time)
            self.settle_down()

    @rule(passes=st.sampled_from([0.5, 3, 29, 31, 100]))
    def wait(self, passes: float) -> None:
        self.now += passes
        self.settle_down()

    @rule(by=st.sampled_from([1, 30, 60, 61, 90, 3600]))
    def set_clock_back(self, by: float) -> None:
        """The order of users does not depend on the clock."""
        self.settle_down()  # a call that changes nothing does not say what time it is
        before = self.places()
        self.now -= by
        self.queue.take_alerts(now=self.now)
        assert self.places() == before
        self.settle_down()

    def places(self) -> list[Any]:
        figures = self.redis.hmget("fq:{default:0}:stats", "vtime", "arrival", "mean", "stamp", "token")
        return [self.redis.zrange("fq:{default:0}:ring", 0, -1, withscores=True), figures]

    @rule(user=USERS, length=LENGTHS)
    def pause_or_resume(self, user: str, length: float | None) -> None:
        self._pause_or_resume(self.queue.user(user), self.paused, user, length)

    def _pause_or_resume(self, handle: Any, paused: dict[str, float], name: str, length: float | None) -> None:
        self.settle_down()
        if paused.pop(name, None) is not None:
            handle.resume(now=self.now)
        else:
            # By the engine's time, which is later than a clock that was set back.
            paused[name] = math.inf if length is None else self.time + length
            handle.pause(note=name, until=None if length is None else paused[name], now=self.now)

    @rule(user=USERS, cap=st.none() | st.integers(1, 2))
    def cap(self, user: str, cap: int | None) -> None:
        self.queue.user(user).set_max_running(cap, now=self.now)
        self.caps = {**self.caps, user: cap} if cap else {k: v for k, v in self.caps.items() if k != user}

    @rule(user=USERS, weight=st.sampled_from([0.5, 1, 3]))
    def weigh(self, user: str, weight: float) -> None:
        self.queue.user(user).set_weight(weight, now=self.now)

    @rule(user=USERS, organization=st.none() | ORGANIZATIONS)
    def join_or_leave(self, user: str, organization: str | None) -> None:
        self.queue.user(user).set_organization(organization, now=self.now)
        self.organization = (
            {**self.organization, user: organization}
            if organization
            else {k: v for k, v in self.organization.items() if k != user}
        )

    @rule(organization=ORGANIZATIONS, length=LENGTHS)
    def pause_or_resume_an_organization(self, organization: str, length: float | None) -> None:
        handle = self.queue.organization(organization)
        self._pause_or_resume(handle, self.organization_paused, organization, length)

    @rule(organization=ORGANIZATIONS, cap=st.none() | st.integers(1, 3))
    def cap_an_organization(self, organization: str, cap: int | None) -> None:
        self.queue.organization(organization).set_max_running(cap, now=self.now)
        self.organization_caps = {**self.organization_caps, organization: cap or 99}

    @rule(organization=ORGANIZATIONS, weight=st.sampled_from([0.5, 1, 3]))
    def weigh_an_organization(self, organization: str, weight: float) -> None:
        self.queue.organization(organization).set_weight(weight, now=self.now)

    @invariant()
    def everything_is_where_it_should_be(self) -> None:
        assert self.queue.check_invariants() == []
        found = {organization.organization: organization for organization in self.queue.organization_stats(["g", "*"])}
        for name, stats in found.items():
            assert stats.members == sum(organization == name for organization in self.organization.values())
            assert stats.members_ready == sum(
                self.servable()[user] > 0 for user in self.organization if self.organization[user] == name
            )
        known = {task_id: self.queue.get_task(task_id).state.value for task_id in self.tasks}
        assert known == {task_id: record.state for task_id, record in self.tasks.items()}


@pytest.mark.thorough
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in (1, 2, 3))])
def test_random_histories_agree_with_the_model(redis: Redis, part: int) -> None:
    machine = type("Histories", (Histories,), {"redis": redis})
    examples = 40 if part else 15
    run_state_machine_as_test(machine, settings=settings(max_examples=examples, stateful_step_count=50, deadline=None))
