"""``manage.py demo``: the library analyses Python's own, for many users at once, and tells who waited how long."""

from __future__ import annotations

import os
from argparse import ArgumentTypeError
from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand, CommandError

from django_fairque import FairQueueError
from library.demonstration import Demonstration
from library.endless_day import NOISY
from library.errors import DemonstrationError
from library.interruption import noted_signals
from library.pipeline_demonstration import PipelineDemonstration

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.core.management.base import CommandParser

INTERRUPTED = 130
"""What shells answer for a command that Ctrl-C ended."""


class Command(BaseCommand):
    help = (
        "Analyse the source files of Python's standard library: every package is a user, every file one of its "
        "documents. Ends with a table of how long each user waited, and would have waited first come, first served."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        cores = min(8, os.cpu_count() or 1)
        parser.add_argument(
            "--processes",
            metavar="N",
            type=at_least(1),
            default=cores,
            help="worker processes (default: %(default)s, one a core)",
        )
        parser.add_argument(
            "--noisy",
            metavar="N",
            type=at_least(0),
            default=0,
            help=(
                f"let one more user, {NOISY!r}, send N tasks before all others, a nightly job send a bulk task for each of "
                "N / 10 customers, and each user send an urgent mail"
            ),
        )
        parser.add_argument(
            "--pipeline",
            action="store_true",
            help="instead: for each package a pipeline, parse every file → (complexity figures | import graph) → report",
        )
        parser.add_argument(
            "--serve",
            action="store_true",
            help=(
                "instead: bring up the admin on a free port, with a worker and customers who never stop sending tasks, "
                "until Ctrl-C; with --pipeline it begins with the pipelines"
            ),
        )
        parser.add_argument(
            "--no-browser",
            action="store_false",
            dest="browser",
            help="with --serve: do not open the admin in a browser",
        )
        parser.add_argument(
            "--packages",
            metavar="A,B",
            type=lambda text: [name for name in text.split(",") if name],
            default=[],
            help="only these packages (default: all of them)",
        )

    def handle(
        self,
        *,
        noisy: int,
        processes: int,
        packages: list[str],
        pipeline: bool,
        serve: bool,
        browser: bool,
        **options: Any,
    ) -> None:
        if pipeline and noisy:
            raise CommandError("--noisy and --pipeline are two demonstrations: give one of them")
        if not (browser or serve):
            raise CommandError("--no-browser goes with --serve, which is not given")
        try:
            with noted_signals():
                if pipeline and not serve:
                    PipelineDemonstration(self.stdout, processes=processes, only=packages).play()
                    return
                demonstration = Demonstration(self.stdout, processes=processes, noisy=noisy, only=packages)
                if serve:
                    demonstration.serve(pipeline=pipeline, browser=browser)
                else:
                    demonstration.play()
        except (FairQueueError, DemonstrationError) as error:
            raise CommandError(str(error)) from error
        except KeyboardInterrupt:
            self.stdout.write("")  # starts a new line after the terminal's ^C
            message = "Interrupted. What is left stays in the queue, for the next demo or fairque_worker."
            raise CommandError(message, returncode=INTERRUPTED) from None


def at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise ArgumentTypeError(f"expected a whole number, at least {least}, got {text!r}")
        return int(text)

    return number
