"""``manage.py fairque_check``: compare a live queue with the engine's invariants."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from django_fairque.management.base import QueueCommand

if TYPE_CHECKING:
    from django_fairque.engine.queue import FairQueue


class Command(QueueCommand):
    help = (
        "Read everything that a queue holds and compare it with the engine's invariants: each task in exactly one "
        "state, queued tasks in their user's queue, leases and counters right. Prints each violation and exits 1 "
        "when there is one. It reads every key of the queue, so run it now and then, not every minute."
    )

    def run(self, queue: FairQueue, options: dict[str, Any]) -> None:
        violations = queue.check_invariants()
        for violation in violations:
            self.stdout.write(self.style.ERROR(str(violation)))
        if violations:
            self.stdout.write(f"queue {queue.name!r}: {len(violations)} violations")
            sys.exit(1)
        states = queue.get_stats().states
        tasks = ", ".join(f"{number:,} {state}" for state, number in states.items() if number) or "empty"
        self.stdout.write(self.style.SUCCESS(f"queue {queue.name!r}: no violation ({tasks})"))
