"""A producer: pushes tasks until SIGTERM, and records its calls and the answers.

``python -m tests.lab.campaign.producer NAME SEED TASKS_PER_SECOND``. Before a call its journal gets ``invoke``, after it
``ok``, ``fail`` (a definite no: nothing may have been done) or ``info`` (nobody knows).
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import django

from django_fairque.engine.model.errors import FairQueueError, RedisConnectionError, ServerRefusedError
from django_fairque.engine.model.lanes import LANES
from django_fairque.engine.model.limits import TaskLimit
from django_fairque.engine.model.priority import Priority
from django_fairque.engine.model.task import Task
from tests.lab.campaign.journal import Journal, intent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_fairque.engine.queue.queue import FairQueue

USERS = [f"user{number}" for number in range(7)]
LONG = float(os.environ.get("CAMPAIGN_LEASE", "2")) * 1.2
"""Seconds: so long that a worker which was frozen meets its task being run by another."""
SHORT = 0.15
"""Seconds that all others take at most: waiting, so that most workers have something in hand when they die."""
MOST_WAITING = 400
"""Tasks with which producers wait."""
EVERY_LONG = float(os.environ.get("CAMPAIGN_EVERY_LONG", "2"))
"""Seconds between two long ones."""

PAIR, OWN = TaskLimit("pair", 2), TaskLimit("own", 1, is_of_user=True)
LIMITS = ((), (), (), (PAIR,), (OWN,), (PAIR, OWN))
"""The limits of tasks, drawn at random."""


class Producer:
    def __init__(self, queue: FairQueue, seed: str, rate: float) -> None:
        self._queue = queue
        self._chance = random.Random(seed)
        self._rate = rate
        self._long_due = self._look_due = 0.0
        self._is_stopping = False

    def stop(self) -> None:
        """After the call that is being made."""
        self._is_stopping = True

    def run(self, journal: Journal) -> None:
        self._journal = journal
        due = time.monotonic()
        while not self._is_stopping:
            self._let_it_catch_up()
            due = max(due + self.push() / self._rate, time.monotonic() - 0.5)
            time.sleep(max(0.0, due - time.monotonic()))

    def _let_it_catch_up(self) -> None:
        """With more waiting than workers can hold, more would only make the run longer."""
        while not self._is_stopping and time.monotonic() >= self._look_due:
            try:
                waiting = self._queue.get_stats(0).states["queued"]
            except FairQueueError:  # then pushing is what is to be tried
                waiting = 0
            if waiting < MOST_WAITING:
                self._look_due = time.monotonic() + 0.5
                return
            time.sleep(0.1)

    def push(self) -> int:
        """One call; how many tasks it was about."""
        if time.monotonic() >= self._long_due:
            self._long_due = time.monotonic() + EVERY_LONG
            tasks = [self._task("campaign.work", LONG)]
        elif self._chance.random() < 0.2:
            return self._call(self._family(), is_graph=True)
        else:
            tasks = [self._task(self._kind(), 0.0) for _ in range(self._chance.randint(1, 8))]
        return self._call(tasks)

    def _kind(self) -> str:
        return "campaign.flaky" if self._chance.random() < 0.1 else "campaign.work"

    def _family(self) -> list[Task]:
        """Two that a third waits for. It runs whatever becomes of them, so that it too must come to an end."""
        parents = [self._task("campaign.work", 0.0) for _ in range(2)]
        ids = [parent.task_id for parent in parents]
        return [*parents, self._task("campaign.work", 0.0, depends_on=ids, on_dependency_failure="run")]

    def _task(self, name: str, seconds: float, **options: Any) -> Task:
        chance = self._chance
        text = "".join(chance.choices('abcdef \n{}"\\é\u2028', k=chance.randint(0, 60)))
        payload = {"args": [seconds or chance.uniform(0, SHORT), text], "kwargs": {}}
        lane = chance.choice(LANES)
        priority = chance.randint(1, 6) if lane == "normal" else Priority.NORMAL
        limits = chance.choice(LIMITS) if name == "campaign.work" else ()
        options.update(name=name, lane=lane, limits=limits, max_retries=5)
        return Task.create(chance.choice(USERS), priority, payload, **options)

    def _call(self, tasks: Sequence[Task], *, is_graph: bool = False) -> int:
        ids = [t.task_id for t in tasks]
        self._journal.write(**intent(tasks))
        try:
            self._queue.push_graph(tasks) if is_graph else self._queue.push_batch(tasks)
        except ServerRefusedError as error:
            self._journal.write(what="fail", ids=ids, error=str(error)[:200])
            time.sleep(0.05)
        except RedisConnectionError as error:
            self._journal.write(what="info", ids=ids, error=str(error)[:200])
        except FairQueueError as error:
            self._journal.write(what="wrong", ids=ids, error=str(error)[:200])
        else:
            self._journal.write(what="ok", ids=ids)
        return len(tasks)


def main() -> None:
    name, seed, rate = sys.argv[1:]
    django.setup()
    from django_fairque import get_queue

    producer = Producer(get_queue(), f"{seed}/{name}", float(rate))
    signal.signal(signal.SIGTERM, lambda *_: producer.stop())
    # The file says that it is there: from now on it ends gracefully.
    producer.run(Journal(Path(os.environ["CAMPAIGN_DIRECTORY"]) / "history" / name))


if __name__ == "__main__":
    main()
