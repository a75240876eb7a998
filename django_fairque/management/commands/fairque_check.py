"""``manage.py fairque_check``: compare a live queue with the engine's invariants, and fix the differences."""

from __future__ import annotations

import sys

from django_fairque.management.base import Parser, QueueCommand
from django_fairque.monitoring.formatting import pluralize
from django_fairque.monitoring.report import differing_declarations, missing_words


class Command(QueueCommand):
    steers = True
    help = (
        "Read everything that a queue holds and compare it with the engine's invariants: each task in exactly one "
        "state, queued tasks in their user's queue, leases, dependencies and counters right. Prints each violation and "
        "exits 1 when there is one. It reads every key of the queue, so run it now and then, not every minute."
    )

    def add_arguments(self, parser: Parser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--repair",
            action="store_true",
            help="make indexes and counters agree with the tasks' records, say what was done; exits 1 if something is left",
        )

    def run(self) -> None:
        queue = self.queue
        if self.options["repair"]:
            for repair in queue.repair():
                self.write_lines(str(repair), style=self.style.WARNING if repair.is_fixed else self.style.ERROR)
        violations = queue.check_invariants()
        for violation in violations:
            self.write_lines(str(violation), style=self.style.ERROR)
        if violations:
            self.write_lines(f"queue {queue.name!r}: {pluralize(len(violations), 'violation')}")
            sys.exit(1)
        if violations.missing_shards:
            words = missing_words(violations.missing_shards)
            self.write_lines(f"queue {queue.name!r}: no violation on the others, but {words}", style=self.style.ERROR)
            sys.exit(1)
        for warning in differing_declarations(queue):
            self.write_lines(warning, style=self.style.WARNING)
        states = queue.get_stats().states
        tasks = ", ".join(f"{number:,} {state}" for state, number in states.items() if number) or "empty"
        self.write_lines(f"queue {queue.name!r}: no violation ({tasks})", style=self.style.SUCCESS)
