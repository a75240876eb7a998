"""Limits by key in plain Python: which queued tasks may start now, whatever their order."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from django_fairque.engine.model.limits import TaskLimit, limit_id_of
from tests.engine.tokens import Tokens


@dataclass
class Work:
    """A task of the model."""

    user: str
    lane: str
    limits: tuple[TaskLimit, ...]
    expires: float = math.inf
    started: float = 0.0

    def limit_ids(self) -> list[str]:
        return [limit_id_of(limit.key, self.user if limit.is_of_user else None) for limit in self.limits]


@dataclass
class Person:
    """A user, or an organization."""

    cap: int | None = None
    is_paused: bool = False
    organization: str | None = None
    running: int = 0
    tokens: Tokens = field(default_factory=Tokens)

    def has_place(self, now: float, beyond: int = 0) -> bool:
        has_room = self.cap is None or self.running < self.cap + beyond
        return not self.is_paused and self.tokens.free_at <= now * 1e6 and has_room


@dataclass
class Places:
    """The tasks that wait and run, and the places of their limits."""

    users: dict[str, Person] = field(default_factory=dict)
    organizations: dict[str, Person] = field(default_factory=dict)
    queued: dict[str, Work] = field(default_factory=dict)
    running: dict[str, Work] = field(default_factory=dict)
    at_once: Counter[str] = field(default_factory=Counter)
    """The number of running tasks of each limit."""
    tokens: dict[str, float] = field(default_factory=dict)
    """By limit with a rate: the theoretical arrival time of the next task, in microseconds."""
    closed: dict[str, float] = field(default_factory=dict)

    def has_room(self, work: Work, now: float) -> bool:
        """Whether each limit of a task has a place."""
        for limit, limit_id in zip(work.limits, work.limit_ids(), strict=True):
            if self.closed.get(limit_id, 0) > now:
                return False
            if limit.at_once is not None and self.at_once[limit_id] >= limit.at_once:
                return False
            if limit.gap is not None:
                arrival = max(self.tokens.get(limit_id, 0), now * 1e6)
                if arrival - limit.gap * (limit.burst - 1) > now * 1e6:
                    return False
        return True

    def chain(self, work: Work) -> Iterator[Person]:
        user = self.users[work.user]
        yield user
        if user.organization:
            yield self.organizations[user.organization]

    def may_start(self, work: Work, now: float) -> bool:
        user, *organization = self.chain(work)
        is_free = user.has_place(now, int(work.lane == "urgent")) and all(one.has_place(now) for one in organization)
        return is_free and self.has_room(work, now)

    def start(self, task_id: str, now: float) -> None:
        """Check that a task may start, and start it."""
        work = self.queued.pop(task_id)
        assert self.may_start(work, now), f"{task_id} started without a place: {work}"
        self.running[task_id] = work
        work.started = now
        for one in self.chain(work):
            one.running += 1
            one.tokens.take(now)
        for limit, limit_id in zip(work.limits, work.limit_ids(), strict=True):
            self.at_once[limit_id] += 1
            if limit.gap is not None:
                self.tokens[limit_id] = max(self.tokens.get(limit_id, 0), now * 1e6) + limit.gap

    def end(self, task_id: str, *, is_given_back: bool = False) -> None:
        work = self.running.pop(task_id)
        for one in self.chain(work):
            one.running -= 1
            if is_given_back:
                one.tokens.give_back(work.started)
        for limit, limit_id in zip(work.limits, work.limit_ids(), strict=True):
            self.at_once[limit_id] -= 1
            if is_given_back and limit.gap is not None:
                self.tokens[limit_id] -= limit.gap
        if is_given_back:
            self.queued[task_id] = work

    def startable(self, now: float) -> list[str]:
        """Return the queued tasks that nothing but their turn keeps from starting."""
        return [task_id for task_id, work in self.queued.items() if self.may_start(work, now) and work.expires > now]
