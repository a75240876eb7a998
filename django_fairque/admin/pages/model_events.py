"""Model events: what each watches, how often it fired, and what went wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from django.utils.translation import gettext_lazy as _

from django_fairque.admin.page_queues import page_queue
from django_fairque.admin.pages.base import AdminPage, moment
from django_fairque.events.overview import EventFacts, overview

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

    from django_fairque.engine.queue.queue import FairQueue


class ModelEventsPage(AdminPage):
    """The events of all apps, whichever queue they send to: they are the project's, not a queue's."""

    name = "model_events"
    path = "model-events/"
    title: ClassVar[StrOrPromise] = _("Model events")
    permission = "view_event"
    template = "admin/django_fairque/model_events.html"

    def template_context(self, queue: FairQueue) -> dict[str, Any]:
        queue.is_paused()  # a server that is down is this page's trouble, though no event may be declared
        known = overview(lambda name: queue if name == queue.name else page_queue(name))
        return {
            "events": [_row(event) for event in known.events],
            "unreachable": dict(known.unreachable),
            "off": sum(bool(event.problems) for event in known.events),
        }


def _row(event: EventFacts) -> dict[str, Any]:
    return {"event": event, "last": moment(event.count.last)}
