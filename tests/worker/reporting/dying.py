"""Enqueues tasks in a transaction and kills itself at the step that the first argument names. Run by `test_outbox`."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import django

django.setup()

from django.db import transaction  # noqa: E402 - Django comes first
from django.db.models import QuerySet  # noqa: E402

from django_fairque.engine.queue.queue import FairQueue  # noqa: E402
from django_fairque.outbox import relay, rows  # noqa: E402
from tests.worker.project.tasks import count_me  # noqa: E402


def die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dying(owner: Any, name: str, *, after: bool) -> None:
    """Replace a function by one that dies before, or after, doing what it does."""
    real = getattr(owner, name)

    def replaced(*args: Any, **kwargs: Any) -> Any:
        if after:
            real(*args, **kwargs)
        die()

    setattr(owner, name, replaced)


STEPS = {
    "before the rows are written": (rows, "store", False),
    "after the rows are written": (rows, "store", True),
    "before the rows are read": (relay, "_entries", False),
    "after the rows are read": (relay._Relay, "deliver", False),
    "before the queue has them": (FairQueue, "deliver", False),
    "after the queue has them": (FairQueue, "deliver", True),
    "before the rows are removed": (QuerySet, "delete", False),
    "after the rows are removed": (QuerySet, "delete", True),
    "before that is forgotten": (FairQueue, "forget_delivered", False),
    "after that is forgotten": (FairQueue, "forget_delivered", True),
}
UNCOMMITTED = ("before the rows are written", "after the rows are written", "before the commit")
DELIVERED = ("after the queue has them", "before the rows are removed")

if __name__ == "__main__":
    step = sys.argv[1]
    if step in STEPS:
        owner, function, is_after = STEPS[step]
        dying(owner, function, after=is_after)
    with transaction.atomic():
        for number in range(3):
            count_me.using(task_id=f"task-{number}").enqueue(number)
        if step == "before the commit":
            die()
    die()
