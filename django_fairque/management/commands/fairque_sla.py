"""``manage.py fairque_sla``: kept and missed SLAs by lane, user and task name."""

from __future__ import annotations

import json

from django.utils import translation

from django_fairque.engine.statistics.task_names import MAX_HOURS
from django_fairque.management.base import Parser, QueueCommand, positive
from django_fairque.monitoring.reports.sla_report import ledger_csv, ledger_lines, ledger_object


class Command(QueueCommand):
    help = "Print the SLAs that tasks kept and missed by lane, user and task name, with the largest cause, and tasks at risk."

    def add_arguments(self, parser: Parser) -> None:
        super().add_arguments(parser)
        add = parser.add_argument
        add(
            "--hours",
            type=positive,
            default=24,
            metavar="N",
            help=f"of the last N hours, up to {MAX_HOURS} (default: 24)",
        )
        form = parser.add_mutually_exclusive_group()
        form.add_argument("--json", action="store_true", help="as one JSON object")
        form.add_argument("--csv", action="store_true", help="as CSV")

    def run(self) -> None:
        ledger = self.queue.sla_ledger(self.options["hours"])
        with translation.override("en"):  # commands print English in every locale
            if self.options["json"]:
                self.write_lines(json.dumps(ledger_object(ledger)))
            else:
                self.write_lines(*(ledger_csv(ledger).splitlines() if self.options["csv"] else ledger_lines(ledger)))
