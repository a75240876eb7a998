"""Model events: the watched fields of each, the number of times it fired, and its errors."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext_lazy as _

from django_fairque.admin.page_queues import page_queue
from django_fairque.admin.pages.base import AdminPage
from django_fairque.monitoring.events_overview import overview


class ModelEventsPage(AdminPage):
    """The events of all apps, whichever queue they send to: they are the project's, not a queue's."""

    name = "model_events"
    title = _("Model events")
    permission = "view_event"

    def template_context(self) -> dict[str, Any]:
        self.queue.is_paused()  # a server that is down is this page's trouble, though no event may be declared
        known = overview(lambda name: self.queue if name == self.queue.name else page_queue(name))
        return {
            "events": known.events,
            "unreachable": dict(known.unreachable),
            "off": sum(bool(event.problems) for event in known.events),
        }
