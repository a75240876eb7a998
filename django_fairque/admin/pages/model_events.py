"""Model events: the watched fields of each event, the number of times that it fired, and its errors."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext_lazy as _

from django_fairque.admin.page_queues import page_queue
from django_fairque.admin.pages.base import AdminPage
from django_fairque.monitoring.events_overview import overview


class ModelEventsPage(AdminPage):
    """The model events of all apps. The page lists the events of all queues, because events belong to the project."""

    name = "model_events"
    title = _("Model events")
    permission = "view_event"

    def template_context(self) -> dict[str, Any]:
        # read the server, so that the page shows a banner if the server is down, even if no event is declared
        self.queue.is_paused()
        known = overview(lambda name: self.queue if name == self.queue.name else page_queue(name))
        return {
            "events": known.events,
            "unreachable": dict(known.unreachable),
            "off": sum(bool(event.problems) for event in known.events),
        }
