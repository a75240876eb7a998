"""Queues: all that are declared, side by side; pause, resume and purge them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from django.core.exceptions import PermissionDenied
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_fairque.monitoring.formatting import number, per_minute
from django_fairque.monitoring.report import LATELY

from .charts import Sparkline
from .page import Action, Page
from .server import page_queue, queue_names

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse
    from django_stubs_ext import StrOrPromise

    from django_fairque.engine.activity import Activity
    from django_fairque.engine.queue import FairQueue
    from django_fairque.engine.statistics import QueueStats

AT_ONCE = 20
"""Queues on a page: each is some eighty reads."""
PURGED_AT_ONCE = 10_000
"""Tasks canceled by one request: about a second's work, so that no proxy gives up on it."""


@dataclass(frozen=True)
class Row:
    """One queue: its figures now and of the last hour, and where more is told of it."""

    name: str
    stats: QueueStats
    activity: Activity
    overview: str
    here: str
    """Where its actions are posted to."""

    @property
    def depth(self) -> list[tuple[str, int]]:
        """What is ready, the most urgent first; nothing of classes without tasks."""
        return [(name, count) for name, count in reversed(self.stats.depth.items()) if count]

    @property
    def rate(self) -> float:
        """Tasks finished a second, lately."""
        return sum(span.finished for span in self.activity.spans[-1 - LATELY : -1]) / (60 * LATELY)

    @property
    def sparkline(self) -> Sparkline:
        title = gettext("Tasks finished in the last hour: %(name)s") % {"name": self.name}
        return Sparkline(title, [span.finished for span in self.activity.spans[:-1]], per_minute)


class Queues(Page):
    """Every declared queue in one table."""

    name = "queues"
    path = "queues/"
    title: ClassVar[StrOrPromise] = _("Queues")
    permission = "view_queue"
    template = "admin/django_fairque/queues.html"
    left = 0
    """What a purge left for another request."""

    def facts(self, queue: FairQueue) -> dict[str, Any]:
        if self._asks_to_purge():
            count, here = waiting(queue), self.url(self.name)
            return {"confirming": "purge", "waiting": count, "most": PURGED_AT_ONCE, "here": here}
        names = queue_names()
        after = self.request.GET.get("after", "")
        begin = names.index(after) + 1 if after in names else 0
        shown = names[begin : begin + AT_ONCE]
        following = self.url(self.name, after=shown[-1]) if names[begin + AT_ONCE :] else ""
        return {"rows": [self._row(name) for name in shown], "next": following}

    def post(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        """A purge that is not confirmed shows what it would do."""
        if self._asks_to_purge():
            if not self.may(self.actions["purge"].permission):
                raise PermissionDenied
            return self.get(request, **kwargs)
        return super().post(request, **kwargs)

    def back_to(self, request: HttpRequest) -> str:
        """To the table, or, while a purge has left something, to be asked whether it is to go on."""
        return self.url(self.name, purge="1") if self.left else self.url(self.name)

    def pause(self, queue: FairQueue, request: HttpRequest) -> str:
        queue.pause()
        return gettext("Queue %(name)s is paused: running tasks go on, no other starts.") % {"name": queue.name}

    def resume(self, queue: FairQueue, request: HttpRequest) -> str:
        queue.resume()
        return gettext("Queue %(name)s goes on.") % {"name": queue.name}

    def purge(self, queue: FairQueue, request: HttpRequest) -> str:
        done = queue.purge(PURGED_AT_ONCE)
        text = ngettext("%(tasks)s task canceled.", "%(tasks)s tasks canceled.", done) % {"tasks": number(done)}
        self.left = waiting(queue) if done >= PURGED_AT_ONCE else 0
        if self.left:
            rest = ngettext("%(tasks)s still waits.", "%(tasks)s still wait.", self.left)
            text += " " + rest % {"tasks": number(self.left)}
        return text

    actions: ClassVar[dict[str, Action]] = {
        "pause": Action("change_queue", pause),
        "resume": Action("change_queue", resume),
        "purge": Action("delete_queue", purge),
    }

    def _asks_to_purge(self) -> bool:
        if self.request.method == "POST":
            asked = self.request.POST
            return asked.get("action") == "purge" and asked.get("confirm") != "yes"
        return "purge" in self.request.GET and self.may(self.actions["purge"].permission)

    def _row(self, name: str) -> Row:
        queue = page_queue(name)
        urls = self.url("overview", queue=name), self.url(self.name, queue=name)
        return Row(name, queue.get_stats(0), queue.get_activity(), *urls)


def waiting(queue: FairQueue) -> int:
    """What a purge would cancel."""
    states = queue.get_stats(0).states
    return states["queued"] + states["scheduled"] + states["deferred"]
