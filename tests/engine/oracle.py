"""A model of a queue in plain Python: states, leases, retries, dependencies. It has no fairness and no order."""

from __future__ import annotations

from dataclasses import dataclass, field

WAITING = ("scheduled", "deferred", "queued")
ENDED = ("finished", "failed", "canceled")
MOST_WAITED_OUT = 60.0
"""Seconds by which a clock may be set back without being believed: time stands still instead."""
SUSPECT = 2
"""Deliveries without an outcome from which on there is a pause before the next."""


@dataclass
class Known:
    """One task."""

    task_id: str
    user: str
    priority: int = 3
    due: float = 0.0
    budget: int = 0
    policy: str = "wait"
    blockers: set[str] = field(default_factory=set)
    state: str = "queued"
    retries: int = 0
    deliveries: int = 0
    is_suspect: bool = False
    token: int = 0
    lease_end: float = 0.0


class Oracle:
    """The states of all tasks. Every method takes the moment at which it happens."""

    def __init__(self, lease: float, deliveries: int) -> None:
        self.lease, self.deliveries = lease, deliveries
        self.tasks: dict[str, Known] = {}
        self.clock = 0.0

    def time(self, clock: float) -> float:
        """The engine's time when its server's clock says this. A clock that is set back by more than a minute is believed."""
        if self.clock - clock > MOST_WAITED_OUT:
            for task in self.tasks.values():
                task.lease_end += clock - self.clock
                if (task.retries or task.deliveries) and task.state == "scheduled":  # its pause was counted, not given
                    task.due = max(clock, task.due + clock - self.clock)
            self.clock = clock
        self.clock = max(self.clock, clock)
        return self.clock

    def catch_up(self, now: float) -> None:
        """Apply the changes that time alone causes: due tasks become ready, ended leases are taken back."""
        for task in list(self.tasks.values()):
            if task.state == "scheduled" and task.due <= now:
                task.state = "queued"
            elif task.state == "started" and task.lease_end <= now:
                self.crash(task, now, ended=True)

    def push(self, graph: list[Known], now: float) -> None:
        """All at once; ``blockers`` are still the declared dependencies. The caller has looked for cycles."""
        new = {task.task_id for task in graph}
        doomed = []
        for task in graph:
            for parent in sorted(task.blockers - new):
                state = self.tasks[parent].state
                if state == "finished" or (state in ("failed", "canceled") and task.policy == "run"):
                    task.blockers.discard(parent)
                elif state == "canceled" or (state == "failed" and task.policy == "cancel"):
                    doomed.append(task)
        for task in graph:
            self.tasks[task.task_id] = task
        for task in graph:
            task.state = "deferred" if task.blockers else "queued"
            if task.state == "queued":
                self.make_ready(task, now)
        for task in doomed:
            self.cancel(task, now)

    def cycle(self, graph: list[Known]) -> bool:
        """Whether tasks would wait for each other, with those that wait already."""
        edges = {task.task_id: task.blockers for task in self.tasks.values() if task.state == "deferred"}
        edges |= {task.task_id: task.blockers for task in graph}
        for start in edges:
            seen: set[str] = set()
            stack = list(edges[start])
            while stack:
                name = stack.pop()
                if name == start:
                    return True
                if name not in seen:
                    seen.add(name)
                    stack += edges.get(name, ())
        return False

    def make_ready(self, task: Known, now: float) -> None:
        task.state = "scheduled" if task.due > now else "queued"

    def start(self, task: Known, token: int, now: float) -> None:
        assert task.state == "queued"
        task.state, task.token, task.lease_end = "started", token, now + self.lease
        task.deliveries += 1

    def finish(self, task: Known, now: float) -> None:
        self.end(task, "finished", now)

    def fail(self, task: Known, now: float, *, for_good: bool) -> None:
        if for_good or task.retries >= task.budget:
            self.end(task, "failed", now)
        else:
            task.state, task.due, task.token = "scheduled", now + 2**task.retries, 0
            task.retries, task.deliveries, task.is_suspect = task.retries + 1, 0, False

    def release(self, task: Known) -> None:
        task.state, task.token = "queued", 0
        task.deliveries -= 1

    def crash(self, task: Known, now: float, *, ended: bool = False) -> None:
        """Take back a task that was leased and got no outcome: its process died, or its lease ``ended``."""
        is_first_crash = not (ended or task.is_suspect)
        task.is_suspect = task.is_suspect or is_first_crash
        pause = min(4, 0.5 * 2 ** (task.deliveries - SUSPECT)) * (1 + task.token % 16 / 16)
        task.state, task.token = "queued", 0
        if is_first_crash:
            return
        if task.deliveries >= self.deliveries:
            self.end(task, "failed", now)
        elif task.deliveries >= SUSPECT:
            task.state, task.due = "scheduled", now + pause

    def cancel(self, task: Known, now: float) -> None:
        if task.state not in ENDED:
            self.end(task, "canceled", now)

    def requeue(self, task: Known) -> None:
        assert task.state == "failed"
        task.state, task.retries, task.deliveries, task.due = "queued", 0, 0, 0.0

    def discard(self, task: Known, now: float) -> None:
        assert task.state == "failed"
        self.end(task, "canceled", now)

    def end(self, task: Known, state: str, now: float) -> None:
        task.state, task.token = state, 0
        task.blockers = set()
        for other in [task for task in self.tasks.values() if task.state == "deferred"]:
            if task.task_id not in other.blockers or other.state != "deferred":
                continue
            if state == "finished" or other.policy == "run":
                other.blockers.discard(task.task_id)
                if not other.blockers:
                    self.make_ready(other, now)
            elif state == "canceled" or other.policy == "cancel":
                self.cancel(other, now)
