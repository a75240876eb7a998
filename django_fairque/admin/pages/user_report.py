"""Pages with figures to download: the report of a user, for support staff and for the user, and the SLA ledger."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from django.http import HttpRequest, HttpResponse
from django.utils.cache import patch_cache_control
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_fairque.admin.charts import printable
from django_fairque.admin.pages.base import AdminPage, NotHereError
from django_fairque.engine.dead_letters.dead_letters import MAX_DEAD_LETTERS_READ
from django_fairque.engine.model.errors import FairQueueError
from django_fairque.engine.users.report import REPORT_HOURS, UserReport
from django_fairque.engine.users.sla_ledger import MAX_SLA_USERS
from django_fairque.monitoring.formatting import number
from django_fairque.monitoring.redaction import redacted_line
from django_fairque.monitoring.reports.incident_impact import DAY_SECONDS
from django_fairque.monitoring.reports.sla_report import describe_cause, ledger_csv, ledger_object
from django_fairque.monitoring.reports.user_report import report_csv, report_json, report_sentence
from django_fairque.monitoring.translations import word

if TYPE_CHECKING:
    from django_fairque.engine.users.history import UserPeriod
    from django_fairque.engine.users.sla_ledger import SlaFigures, SlaLedger

HOURS = (REPORT_HOURS, 24, 48)
"""The choices for the number of hours that are added up."""
LEDGER_HOURS = (2, 24)
DOWNLOADS = {"csv": "text/csv", "json": "application/json"}
"""The kinds of files, with their content types."""


class DownloadPage(AdminPage):
    """A page whose figures can be downloaded: with ``?download=csv`` or ``json`` the response is a file."""

    def write_file(self, kind: str) -> tuple[str, str]:
        """Return the content of a file of this kind, and its name without the kind."""
        raise NotImplementedError

    def get(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        if (kind := request.GET.get("download", "")) in DOWNLOADS:
            with suppress(FairQueueError, NotHereError):  # after an error, the page is shown, with the error
                return self._download(kind)
        return super().get(request, **kwargs)

    def _download(self, kind: str) -> HttpResponse:
        self._open_queue()
        content, name = self.write_file(kind)
        response = HttpResponse(content, content_type=DOWNLOADS[kind])
        response["Content-Disposition"] = f'attachment; filename="{name}.{kind}"'
        response["X-Content-Type-Options"] = "nosniff"
        patch_cache_control(response, private=True, no_cache=True, no_store=True)
        return response


class UserReportPage(DownloadPage):
    """The report of one user, whose id is a part of the path.

    The texts of errors are shown only with the permission to see dead letters.
    """

    name = "user_report"
    path = "users/id-<str:key>/report/"
    title = gettext_lazy("Report")
    permission = "view_user"
    in_menu = False
    list_name = "users"
    refreshes = False  # a refresh would disturb an operator who copies the sentence

    def write_file(self, kind: str) -> tuple[str, str]:
        write = report_csv if kind == "csv" else report_json
        content = write(self._read_report(), has_errors=self.may("view_deadletter"))
        return content, "report-" + (re.sub("[^A-Za-z0-9.-]+", "-", self.key)[:60].strip("-.") or "user")

    def _read_report(self) -> UserReport:
        return self.queue.user(self.key).report(self._hours)

    @property
    def _hours(self) -> int:
        text = self.request.GET.get("hours", "")
        return int(text) if text in map(str, HOURS) else REPORT_HOURS

    def template_context(self) -> dict[str, Any]:
        report = self._read_report()
        hours, days = report.history.hours, report.history.days
        return {
            "report": report,
            "sentence": report_sentence(report),
            "sums": [(_("These hours together"), _rows([report.recent]))],
            "tables": [
                (_("Hours"), _rows(filter(_is_active, reversed(hours)))),
                (_("Days, in UTC"), _rows(filter(_is_active, reversed(days)))),
            ],
            "errors": [
                (
                    group,
                    redacted_line(group.sample),
                    self.link("dead_letters", fingerprint=group.fingerprint, user_id=self.key),
                )
                for group in (report.errors if self.may("view_deadletter") else ())
            ],
            "unknown": max(0, report.recent.dead - report.known_errors),
            "most": number(MAX_DEAD_LETTERS_READ),
            "hours": str(self._hours),
            "choices": self.build_hour_links(HOURS, self.kwargs["key"], by_clock=True),
            "user_url": self.url("users", user=self.key),
        }


def _rows(periods: Iterable[UserPeriod]) -> list[tuple[str, UserPeriod, float | None]]:
    """Return a row for each period: its date if it is a day, the period itself, and the fraction of its starts that
    kept the SLA.
    """
    rows = []
    for period in periods:
        starts = period.sla_kept + period.sla_missed
        day = (
            f"{datetime.fromtimestamp(period.begin, tz=timezone.utc):%Y-%m-%d}" if period.seconds == DAY_SECONDS else ""
        )
        rows.append((day, period, period.sla_kept / starts if starts else None))
    return rows


def _is_active(period: UserPeriod) -> bool:
    return bool(period.wait.count or period.finished or period.failed or period.dead)


class SlaPage(DownloadPage):
    """A table of lanes, one of users and one of task names, those with most missed tasks first."""

    name = "sla"
    title = gettext_lazy("SLA")
    permission = "view_user"

    def _read_ledger(self) -> SlaLedger:
        hours = self.request.GET.get("hours", "24")
        if hours not in map(str, LEDGER_HOURS):
            raise NotHereError(_("hours must be 2 or 24, got %(hours)s.") % {"hours": hours})
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
            "choices": self.build_hour_links(LEDGER_HOURS, by_clock=True),
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
