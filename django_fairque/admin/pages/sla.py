"""The SLA ledger: kept and missed SLAs by lane, user and task name, with the largest cause, and waiting tasks at risk."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_fairque.admin.charts import printable
from django_fairque.admin.pages.base import NotHereError
from django_fairque.admin.pages.user_report import DownloadPage
from django_fairque.engine.statistics.sla_ledger import MAX_SLA_USERS
from django_fairque.monitoring.formatting import number
from django_fairque.monitoring.reports.sla_report import describe_cause, ledger_csv, ledger_object
from django_fairque.monitoring.translations import word

if TYPE_CHECKING:
    from django_fairque.engine.statistics.sla_ledger import SlaFigures, SlaLedger

HOURS = (1, 24)


class SlaPage(DownloadPage):
    """A table of lanes, one of users and one of task names, those with most missed tasks first."""

    name = "sla"
    title = gettext_lazy("SLA")
    permission = "view_user"

    def _read_ledger(self) -> SlaLedger:
        hours = self.request.GET.get("hours", "24")
        if hours not in map(str, HOURS):
            raise NotHereError(_("hours must be 1 or 24, got %(hours)s.") % {"hours": hours})
        return self.queue.sla_ledger(int(hours))

    def write_file(self, kind: str) -> tuple[str, str]:
        ledger = self._read_ledger()
        return ledger_csv(ledger) if kind == "csv" else json.dumps(ledger_object(ledger)), f"sla-{self.queue_name}"

    def template_context(self) -> dict[str, Any]:
        ledger = self._read_ledger()
        return {
            "refresh": 15,
            "ledger": ledger,
            "hours": str(ledger.hours),
            "choices": self.build_hour_links(HOURS),
            "most": number(MAX_SLA_USERS),
            "tables": [
                (_("By lane"), [self._row(row, str(word(row.name))) for row in ledger.lanes]),
                (_("By user"), [self._row(row, row.name, "users", user=row.name) for row in ledger.users]),
                (_("By task name"), [self._row(row, row.name, "task_names", name=row.name) for row in ledger.tasks]),
            ],
        }

    def _row(self, figures: SlaFigures, text: str, page: str = "", **query: str) -> tuple[str, str, SlaFigures, str]:
        url = self.link(page, **query) if page and text else ""
        return printable(text), url, figures, describe_cause(figures)
