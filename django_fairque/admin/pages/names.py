"""Task names: the busiest, slowest and most failing ones of the last hour or day."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_fairque.admin.charts import printable
from django_fairque.admin.pages.base import AdminPage, NotHereError

if TYPE_CHECKING:
    from django_fairque.engine.statistics.task_names import NameFigures

HOURS = (1, 24)
"""Hours that can be shown."""
ORDERS: dict[str, Callable[[NameFigures], float]] = {
    "attempts": lambda each: each.attempts,
    "failed": lambda each: each.failed,
    "share": lambda each: each.failed_share,
    "p50": lambda each: each.run.p50,
    "p95": lambda each: each.run.p95,
    "retrying": lambda each: each.retrying,
}
"""What the table can be sorted by, the largest value first."""


class TaskNamesPage(AdminPage):
    """A row for each name."""

    name = "task_names"
    title = _("Task names")
    permission = "view_task"

    def template_context(self) -> dict[str, Any]:
        hours, order = self.request.GET.get("hours", "1"), self.request.GET.get("sort", "attempts")
        if hours not in map(str, HOURS):
            raise NotHereError(gettext("hours must be 1 or 24, got %(hours)s.") % {"hours": hours})
        if order not in ORDERS:
            raise NotHereError(gettext("The table can't be sorted by %(sort)s.") % {"sort": order})
        titles = {
            "attempts": gettext("Attempts"),
            "failed": gettext("Failed"),
            "share": gettext("Failed, share"),
            "p50": gettext("Run time (p50)"),
            "p95": gettext("Run time (p95)"),
            "retrying": gettext("Wait for a retry"),
        }
        figures = sorted(self.queue.task_names(int(hours)), key=ORDERS[order], reverse=True)
        return {
            "refresh": 15,
            "hours": hours,
            "choices": [
                (
                    str(each),
                    ngettext("last hour", "last %(hours)d hours", each) % {"hours": each},
                    self.url(self.name, hours=str(each), sort=order),
                )
                for each in HOURS
            ],
            "columns": [
                (title, self.url(self.name, hours=hours, sort=each), each == order) for each, title in titles.items()
            ],
            "table": [(printable(each.name), each) for each in figures],
        }
