"""Overview: how a queue is, at a glance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from django.utils.translation import gettext_lazy as _

from .page import Page

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

    from django_fairque.engine.queue import FairQueue


class Overview(Page):
    """Tiles, charts, promises, users, server."""

    name = "overview"
    path = "overview/"
    title: ClassVar[StrOrPromise] = _("Overview")
    permission = "view_queue"
    template = "admin/django_fairque/overview.html"

    def facts(self, queue: FairQueue) -> dict[str, Any]:
        return {"stats": queue.get_stats()}
