"""What the queue's commands share: choosing a queue, and one clear line when something is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_fairque.conf import get_queue
from django_fairque.engine.errors import FairQueueError

if TYPE_CHECKING:
    from django_fairque.engine.queue import FairQueue


class QueueCommand(BaseCommand):
    """A command about one queue; subclasses define `run`, whose errors end it with one line."""

    requires_system_checks: list[str] = []  # noqa: RUF012 - Django's own declaration

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--queue", default="default", metavar="NAME", help="the queue (default: %(default)s)")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            self.run(get_queue(options["queue"]), options)
        except (FairQueueError, ValueError) as error:
            raise CommandError(str(error)) from error

    def run(self, queue: FairQueue, options: dict[str, Any]) -> None:
        raise NotImplementedError
