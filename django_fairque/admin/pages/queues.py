"""Queues: all that are declared, side by side; pause, resume and purge them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_fairque.admin.charts import Sparkline
from django_fairque.admin.page_queues import page_queue, queue_names
from django_fairque.admin.pages.base import Action, ConfirmingPage, Question, at_most, purge
from django_fairque.monitoring.formatting import number, per_minute
from django_fairque.monitoring.report import RATE_MINUTES

if TYPE_CHECKING:
    from django.http import HttpRequest
    from django_stubs_ext import StrOrPromise

    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.engine.statistics.queue_stats import QueueStats, ShardStats
    from django_fairque.engine.statistics.timeline import Activity

QUEUES_PER_PAGE = 20
"""Queues on a page: each is some eighty reads."""


@dataclass(frozen=True)
class QueueRow:
    """One queue: its figures now and of the last hour, and links to more."""

    name: str
    stats: QueueStats
    activity: Activity
    shards: list[ShardStats]
    """Empty for a queue of one."""
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
        return sum(span.finished for span in self.activity.spans[-1 - RATE_MINUTES : -1]) / (60 * RATE_MINUTES)

    @property
    def sparkline(self) -> Sparkline:
        title = gettext("Tasks finished in the last hour: %(name)s") % {"name": self.name}
        return Sparkline(title, [span.finished for span in self.activity.spans[:-1]], per_minute)


class QueuesPage(ConfirmingPage):
    """Every declared queue in one table."""

    name = "queues"
    path = "queues/"
    title: ClassVar[StrOrPromise] = _("Queues")
    permission = "view_queue"
    template = "admin/django_fairque/queues.html"

    def template_context(self, queue: FairQueue) -> dict[str, Any]:
        names = queue_names()
        after = self.request.GET.get("after", "")
        begin = names.index(after) + 1 if after in names else 0
        shown = names[begin : begin + QUEUES_PER_PAGE]
        following = self.url(self.name, after=shown[-1]) if names[begin + QUEUES_PER_PAGE :] else ""
        return {"rows": [self._row(name) for name in shown], "next": following}

    def back_to(self, request: HttpRequest) -> str:
        """To the table."""
        return self.url(self.name)

    def pause(self, queue: FairQueue, request: HttpRequest) -> str:
        queue.pause()
        return gettext("Queue %(name)s is paused: running tasks go on, no other starts.") % {"name": queue.name}

    def resume(self, queue: FairQueue, request: HttpRequest) -> str:
        queue.resume()
        return gettext("Queue %(name)s goes on.") % {"name": queue.name}

    def purge(self, queue: FairQueue, request: HttpRequest) -> str:
        def summary(done: int) -> str:
            return ngettext("%(tasks)s task canceled.", "%(tasks)s tasks canceled.", done) % {"tasks": number(done)}

        return purge(self, "", queue, queue.purge, lambda: waiting(queue), summary, self._question)

    def _question(self, count: int, *before: str) -> Question:
        sentence = ngettext(
            "%(tasks)s task waits: ready, scheduled or for other tasks. It is canceled for good; running tasks go on.",
            "%(tasks)s tasks wait: ready, scheduled or for other tasks. They are canceled for good; running tasks go on.",
            count,
        )
        text = [*before, sentence % {"tasks": number(count)}, at_most(count)]
        title = gettext("Purge queue %(name)s?") % {"name": self.queue_name}
        return Question(text, gettext("Yes, cancel them"), {}, title=title)

    actions: ClassVar[dict[str, Action]] = {
        "pause": Action("change_queue", pause),
        "resume": Action("change_queue", resume),
        "purge": Action("delete_queue", purge),
    }

    def _row(self, name: str) -> QueueRow:
        queue = page_queue(name)
        urls = self.url("overview", queue=name), self.url(self.name, queue=name)
        shards = queue.get_shard_stats() if queue.config.shards > 1 else []
        return QueueRow(name, queue.get_stats(0), queue.get_activity(), shards, *urls)


def waiting(queue: FairQueue) -> int:
    """What a purge would cancel."""
    states = queue.get_stats(0).states
    return states["queued"] + states["scheduled"] + states["deferred"]
