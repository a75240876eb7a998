"""Incidents: problems of a queue in the last 30 days. Each incident has a page with a permanent address."""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.contrib.admin.utils import quote
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_fairque.admin.pages.audit import audit_row
from django_fairque.admin.pages.base import AdminPage, NotHereError
from django_fairque.audit import read_entries
from django_fairque.engine.statistics.incidents import sorted_users
from django_fairque.monitoring.formatting import duration
from django_fairque.monitoring.redaction import redacted_line
from django_fairque.monitoring.reports.incident_impact import HOUR_SECONDS, incident_impact
from django_fairque.monitoring.translations import incident_title

if TYPE_CHECKING:
    from django_fairque.engine.inspection.worker_activity import ReportedTask
    from django_fairque.engine.model.task import Task
    from django_fairque.engine.statistics.incidents import Incident

INCIDENTS_SHOWN = 100
HURT_USERS_SHOWN = 20
BUSIEST_SHOWN = 5
INTERRUPTED_SHOWN = 50
ACTS_SHOWN = 50
ACTS_BEFORE_SECONDS = 3600.0


class IncidentsPage(AdminPage):
    """The page that lists open incidents first, then the latest closed incidents."""

    name = "incidents"
    title = gettext_lazy("Incidents")
    permission = "view_queue"

    def template_context(self) -> dict[str, Any]:
        found = self.queue.incidents.recent(INCIDENTS_SHOWN)
        return {
            "rows": [
                {
                    "incident": incident,
                    "title": incident_title(incident),
                    "url": self.url("incident", quote(incident.id)),
                    "length": (incident.closed_at or time.time()) - incident.opened_at,
                }
                for incident in found
            ],
            "shown": INCIDENTS_SHOWN if len(found) == INCIDENTS_SHOWN else 0,
        }


class IncidentPage(AdminPage):
    """The page of one incident, whose id is the last part of the path. Users and texts about tasks are shown only with
    the permissions for them.
    """

    name = "incident"
    path = "incidents/id-<str:key>/"
    title = gettext_lazy("Incident")
    permission = "view_queue"
    list_name = "incidents"

    def template_context(self) -> dict[str, Any]:
        incident = self.queue.incidents.get(self.key)
        if incident is None:
            raise NotHereError(_("There is no incident %(id)s: incidents are kept for 30 days.") % {"id": self.key})
        self.refreshes = incident.is_open
        impact = incident_impact(self.queue, incident)
        tasks = (
            sorted(incident.objects)
            if incident.rule not in {"worker_lost", "release"} and self.may("view_task")
            else []
        )
        error = impact.first_error
        return {
            "incident": incident,
            "incident_title": incident_title(incident),
            "length": (incident.closed_at or time.time()) - incident.opened_at,
            "impact": impact,
            "users": sorted_users(incident) if self.may("view_user") else [],
            "tasks": [(task_id, self.link("task", quote(task_id))) for task_id in tasks[:20]],
            "interrupted": self._list_interrupted(incident) if self.may("view_task") else [],
            "error_text": redacted_line(error.reason) if error else "",
            "error_url": self.link("dead_letter", quote(error.entry_id)) if error else "",
            "hurt_users": len(impact.hurt),
            "waiting_users": len(impact.waiting),
            "waiting_tasks": sum(user.ready for user in impact.waiting),
            "hurt": impact.hurt[:HURT_USERS_SHOWN] if self.may("view_user") else [],
            "busiest": impact.busiest[:BUSIEST_SHOWN] if self.may("view_user") else [],
            "is_recent": any(user.busy_seconds is not None for user in impact.users),
            "is_by_day": impact.period_seconds > HOUR_SECONDS,
            "acts": self._list_acts(incident),
            "acts_before": duration(ACTS_BEFORE_SECONDS),
            "audit": self.url("audit"),
        }

    def _list_interrupted(self, incident: Incident) -> list[tuple[ReportedTask, str, Task | None]]:
        """Return the tasks that lost workers of the incident ran by their last report, each as it is now."""
        if incident.rule != "worker_lost":
            return []
        lost = [worker for worker in self.queue.incidents.lost_workers() if worker.worker in incident.objects]
        ran = [task for worker in lost for task in worker.tasks][:INTERRUPTED_SHOWN]
        known = self.queue.get_tasks([task.task_id for task in ran])
        return [(task, self.link("task", quote(task.task_id)), known.get(task.task_id)) for task in ran]

    def _list_acts(self, incident: Incident) -> list[dict[str, Any]]:
        """Return the audit entries about the queue from an hour before the incident until its end, the earliest
        first.
        """
        begin, end = incident.opened_at - ACTS_BEFORE_SECONDS, incident.closed_at or time.time()
        zone = timezone.get_current_timezone()
        entries = read_entries().filter(
            queue=self.queue_name, at__range=[datetime.fromtimestamp(moment, tz=zone) for moment in (begin, end)]
        )
        if not self.may("view_outboxentry"):
            entries = entries.exclude(kind="outbox")
        return [audit_row(entry) for entry in entries.order_by("at", "pk")[:ACTS_SHOWN]]
