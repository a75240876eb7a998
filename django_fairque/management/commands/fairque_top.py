"""``manage.py fairque_top``: shows a queue in a full-screen terminal view."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from django.core.management.base import CommandError

from django_fairque.management.base import Parser, QueueCommand, positive

MIN_READING_SECONDS = 0.5
MAX_READING_SECONDS = 3600.0
"""The shortest and the longest time in seconds between two reads of the figures."""
MAX_ROWS = 150


class Command(QueueCommand):
    steers = True
    tells_missing = False  # the view already shows missing shards
    help = (
        "Show a queue at a full-screen terminal: slots, backlog, running tasks and users. Keys: p pauses or resumes "
        "the selected user, w changes its weight, / searches, q quits. Needs django-fairque[terminal]; without it, use "
        "fairque_stats --watch."
    )

    def add_arguments(self, parser: Parser) -> None:
        super().add_arguments(parser)
        interval = "seconds between two readings, from 0.5 to 3600 (default: %(default)g)"
        parser.add_argument("--interval", type=float, default=2.0, metavar="SECONDS", help=interval)
        limit = "show at most N running tasks and N users, from 1 to 150 (default: %(default)s)"
        parser.add_argument("--limit", type=positive, default=100, metavar="N", help=limit)

    def run(self) -> None:
        interval, limit = self.options["interval"], self.options["limit"]
        if not MIN_READING_SECONDS <= interval <= MAX_READING_SECONDS:
            raise ValueError(f"--interval takes a number of seconds from 0.5 to 3600, got {interval:g}")
        if limit > MAX_ROWS:
            raise ValueError(f"--limit takes a number from 1 to 150, got {limit}")
        if find_spec("textual") is None:
            raise CommandError(
                'fairque_top needs the package textual: install "django-fairque[terminal]", or use fairque_stats --watch'
            )
        if not (sys.stdin and sys.stdin.isatty() and sys.stdout.isatty()):
            raise CommandError("fairque_top needs a terminal; for a pipe or a file use fairque_stats --watch")
        from django_fairque.management.terminal import QueueApp

        QueueApp(self.queue, interval, limit, self.actor).run()
