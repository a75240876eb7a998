"""Incidents: what was wrong with the queue in the last 30 days; a page for each one, whose address stays."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from django.contrib.admin.utils import quote
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_fairque.admin.pages.base import AdminPage, NotHereError
from django_fairque.engine.statistics.incidents import sorted_users

if TYPE_CHECKING:
    from django_fairque.engine.statistics.incidents import Incident

INCIDENTS_SHOWN = 100
TITLES = {
    "sla": gettext_lazy("%(subject)s tasks start late"),
    "promoted": gettext_lazy("%(subject)s tasks waited too long and were promoted"),
    "given_back": gettext_lazy("%(subject)s tasks are given back again and again"),
    "data_lost": gettext_lazy("the server lost data"),
    "worker_lost": gettext_lazy("workers were lost"),
    "limit": gettext_lazy("over the limit of %(subject)s"),
}


def title_of(incident: Incident) -> str:
    """The title in the reader's language."""
    title = TITLES.get(incident.rule)
    return str(title) % {"subject": incident.subject} if title else incident.title


class IncidentsPage(AdminPage):
    """The open incidents, then the latest ones."""

    name = "incidents"
    title = gettext_lazy("Incidents")
    permission = "view_queue"

    def template_context(self) -> dict[str, Any]:
        found = self.queue.incidents.recent(INCIDENTS_SHOWN)
        return {
            "rows": [
                {
                    "incident": incident,
                    "title": title_of(incident),
                    "url": self.url("incident", quote(incident.id)),
                    "length": (incident.closed_at or time.time()) - incident.opened_at,
                }
                for incident in found
            ],
            "shown": INCIDENTS_SHOWN if len(found) == INCIDENTS_SHOWN else 0,
        }


class IncidentPage(AdminPage):
    """One incident: its id is the last part of the path. Users and texts about tasks need their own permissions."""

    name = "incident"
    path = "incidents/id-<str:key>/"
    title = gettext_lazy("Incident")
    permission = "view_queue"
    list_name = "incidents"

    def template_context(self) -> dict[str, Any]:
        incident = self.queue.incidents.get(self.key)
        if incident is None:
            raise NotHereError(_("There is no incident %(id)s: incidents are kept for 30 days.") % {"id": self.key})
        tasks = sorted(incident.objects) if incident.rule != "worker_lost" and self.may("view_task") else []
        return {
            "incident": incident,
            "incident_title": title_of(incident),
            "length": (incident.closed_at or time.time()) - incident.opened_at,
            "users": sorted_users(incident) if self.may("view_user") else [],
            "tasks": [(task_id, self.link("task", quote(task_id))) for task_id in tasks[:20]],
            "audit": self.url("audit"),
        }
