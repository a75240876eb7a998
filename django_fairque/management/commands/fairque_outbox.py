"""``manage.py fairque_outbox``: what waits in the databases' outboxes, and why."""

from __future__ import annotations

from argparse import RawDescriptionHelpFormatter
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import DatabaseError
from django.db.models import Count, Min, Q
from django.utils import timezone

from django_fairque.conf import get_config
from django_fairque.management.base import PrintingCommand
from django_fairque.models import OutboxEntry
from django_fairque.monitoring.formatting import duration, number, table
from django_fairque.monitoring.redaction import redacted_text
from django_fairque.outbox.relay import outboxes, relay

ENTRIES_SHOWN = 20


class Command(PrintingCommand):
    help = (
        "Show what waits in the outboxes: tasks of committed transactions that their queue does not have yet.\n"
        "Exits with 1 while something there can't be relayed as it is."
    )

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        return super().create_parser(prog_name, subcommand, formatter_class=RawDescriptionHelpFormatter, **kwargs)

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--database", metavar="ALIAS", help="only this one (default: all that have an outbox)")
        parser.add_argument(
            "--relay", action="store_true", help="relay all of it now, also what waits to be tried again later"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        known = outboxes()
        wanted = options["database"]
        if wanted and wanted not in known:
            raise CommandError(f"no outbox in a database {wanted!r}; there is one in {', '.join(map(repr, known))}")
        try:
            stuck = sum(self._database(alias, relays=options["relay"]) for alias in ([wanted] if wanted else known))
        except DatabaseError as error:
            raise CommandError(f"{error}; has `migrate` run?") from error
        if not get_config().outbox:
            self.write_lines("The outbox is off: nothing new is written into it (OUTBOX in settings.FAIRQUE).")
        if stuck:
            raise SystemExit(1)

    def _database(self, alias: str, *, relays: bool) -> int:
        """Relay what is there, if that is wanted, and show the rest; how many are stuck."""
        entries = OutboxEntry.objects.using(alias)
        if relays:
            entries.filter(retry_at__isnull=False).update(retry_at=None)
            self.write_lines(f"database {alias}: {number(_relay_all(alias))} tasks relayed")
        facts = entries.aggregate(
            all=Count("pk"),
            stuck=Count("pk", filter=Q(is_stuck=True)),
            oldest=Min("created_at"),
            failing=Count("pk", filter=Q(attempts__gt=0)),
        )
        if not facts["all"]:
            self.write_lines(f"database {alias}: nothing waits")
            return 0
        age = (timezone.now() - facts["oldest"]).total_seconds()
        self.write_lines(
            f"database {alias}: {number(facts['all'])} wait, the oldest for {duration(age)}; "
            f"{number(facts['failing'])} have failed, {number(facts['stuck'])} are stuck"
        )
        rows: list[tuple[str, ...]] = [("task", "queue", "user", "id", "attempts", "last error")]
        for each in entries.filter(attempts__gt=0).order_by("id")[:ENTRIES_SHOWN]:
            error = redacted_text(each.last_error)
            rows.append((each.name or "-", each.queue, each.user_id, each.task_id, number(each.attempts), error))
        if len(rows) > 1:
            self.write_lines(*(f"  {line}" for line in table(rows)))
        return int(facts["stuck"])


def _relay_all(alias: str) -> int:
    count = 0
    while True:
        relayed = relay(alias)
        count += relayed.tasks
        if relayed.error is not None:
            raise CommandError(f"database {alias}: {number(count)} tasks relayed, then: {relayed.error}")
        if not relayed.more:
            return count
