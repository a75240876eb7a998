"""Random worlds in which users push tasks while workers run them, and the starts of tasks are estimated."""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django_fairque.engine.model.limits import TaskLimit
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import NOW, task

if TYPE_CHECKING:
    from redis import Redis

    from django_fairque.engine.model.lease import Lease
    from django_fairque.engine.users.start_estimates import StartEstimate

TASKS_PER_PUSH = (1, 1, 1, 5)
MIXED_PRIORITIES = (3, 3, 3, 3, 3, 3, 3, 3, 4, 2, 6)
SOME_BULK, ALL_LANES = ("normal",) * 8 + ("bulk",), ("normal",) * 8 + ("urgent", "bulk")
FOREVER = 1e6
"""Seconds: the lease of a task, and the life of the worker."""


@dataclass
class Question:
    """A queued task, the estimate, and the seconds until it started; None if it has not."""

    at: float
    estimate: StartEstimate
    waited: float | None = None

    @property
    def is_right(self) -> bool:
        low, high = self.estimate.low, self.estimate.high
        return None not in (self.waited, low, high) and low <= self.waited <= high  # type: ignore[operator]


class StartingWorld:
    """One queue and one worker. Tasks arrive as fast as 30 % to 90 % of the worker's slots can run them, after a backlog."""

    def __init__(self, redis: Redis, seed: int) -> None:
        redis.flushall()
        self.random = random.Random(seed)
        draw = self.random.choice
        config = QueueConfig(fair_by=draw(["time", "time", "tasks"]), lease_seconds=FOREVER)
        self.queue, self.now = FairQueue(redis, config=config), NOW
        self.slots, self.mean, self.spread = draw([1, 2, 4, 8, 16]), draw([0.05, 0.5, 3.0, 20.0]), draw([0.2, 0.5, 1.0])
        self.lanes = draw([("normal",), ("normal",), SOME_BULK, ALL_LANES])
        self.priorities = draw([(3,), (3,), (3,), MIXED_PRIORITIES])
        self.limits = [TaskLimit("shared", draw([1, 2]))] if self.random.random() < 0.2 else []
        self.questions: dict[str, Question] = {}
        self.answered: list[Question] = []
        self.waiting: dict[str, str] = {}
        self.events: list[tuple[float, int, Lease | None, float]] = []
        """Ends of tasks, or without a lease the arrival of tasks: the moment, a number, the lease and the run time."""
        self.running = 0
        self.run_times: dict[str, float] = {}
        self.add_users(draw([2, 5, 15, 40]))
        work = sum(TASKS_PER_PUSH) / len(TASKS_PER_PUSH) * self.mean_run_time()
        self.arrivals_per_second = draw([0.3, 0.5, 0.7, 0.9]) * self.slots / work
        self.queue.heartbeat("w", {}, ttl=FOREVER, now=NOW)
        for _ in range(self.slots * draw([2, 5, 10])):
            self.push()
        self.schedule_arrival()
        self.fetch([])

    def add_users(self, number: int) -> None:
        draw = self.random.choice
        has_caps, has_rates, has_organizations = (self.random.random() < part for part in (0.4, 0.3, 0.25))
        # Few users send most of the tasks.
        self.shares = {f"u{index}": self.random.paretovariate(0.8) for index in range(number)}
        for name in self.shares:
            user, self.run_times[name] = self.queue.user(name), self.mean * draw([0.3, 1, 1, 3])
            if self.random.random() < 0.3:
                user.set_weight(draw([0.5, 2, 4]), now=NOW)
            if has_caps and self.random.random() < 0.4:
                user.set_max_running(draw([1, 2, 4]), now=NOW)
            if has_rates and self.random.random() < 0.4:
                user.set_rate(f"{draw([1, 5])}/{max(1, round(self.mean * draw([1, 4])))}s", burst=draw([1, 5]), now=NOW)
            if has_organizations and self.random.random() < 0.5:
                user.set_organization(draw(["o1", "o2"]), now=NOW)
            if self.random.random() < 0.02:
                user.pause(now=NOW)

    def mean_run_time(self) -> float:
        return sum(self.run_times[name] * share for name, share in self.shares.items()) / sum(self.shares.values())

    def schedule(self, seconds: float, lease: Lease | None) -> None:
        heapq.heappush(self.events, (self.now + seconds, self.random.getrandbits(60), lease, seconds))

    def schedule_arrival(self) -> None:
        self.schedule(self.random.expovariate(self.arrivals_per_second), None)

    def push(self) -> None:
        (name,) = self.random.choices(list(self.shares), list(self.shares.values()))
        tasks = []
        for _ in range(self.random.choice(TASKS_PER_PUSH)):
            lane = self.random.choice(self.lanes)
            is_normal = lane == "normal"
            limits = self.limits if is_normal and self.random.random() < 0.2 else []
            tasks.append(task(name, self.random.choice(self.priorities) if is_normal else 3, lane=lane, limits=limits))
        self.queue.push_batch(tasks, now=self.now)
        self.waiting.update((made.task_id, name) for made in tasks)

    def fetch(self, outcomes: list[Outcome]) -> None:
        free = self.slots - self.running
        for lease in self.queue.settle(outcomes, fetch=free, worker="w", now=self.now).leases if free else []:
            self.running += 1
            log_mean = -(self.spread**2) / 2
            factor = math.exp(self.random.gauss(log_mean, self.spread))
            self.schedule(self.run_times[self.waiting.pop(lease.task_id)] * factor, lease)
            if question := self.questions.pop(lease.task_id, None):
                question.waited = self.now - question.at
                self.answered.append(question)

    def step(self) -> None:
        self.now, _, lease, took = heapq.heappop(self.events)
        if lease is None:
            self.push()
            self.schedule_arrival()
            self.queue.sweep(now=self.now)  # users at a rate return
            self.fetch([])
        else:
            self.running -= 1
            self.fetch([Outcome.finish(lease, took=took)])

    def ask(self) -> None:
        if queued := [task_id for task_id in self.waiting if task_id not in self.questions]:
            task_id = self.random.choice(queued)
            self.questions[task_id] = Question(self.now, self.queue.starts_in(task_id))

    def play(self, questions: int, steps: int = 3000) -> list[Question]:
        """Ask about some tasks while time passes, then let time pass until they have started, for at most some steps."""
        for number in range(steps):
            if number > 20 and number % 6 == 0 and len(self.questions) + len(self.answered) < questions:
                self.ask()
            elif number > 20 + 6 * questions and not self.questions:
                break
            self.step()
        return [*self.answered, *self.questions.values()]
