"""The page that lists all declared queues. Operators can pause, resume and purge queues here."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_fairque.admin.charts import describe_line
from django_fairque.admin.page_queues import page_queue, queue_names
from django_fairque.admin.pages.base import Action, AdminPage, Question, at_most
from django_fairque.admin.pages.users import posted_pause
from django_fairque.engine.queue.lockstep import read_in_lockstep
from django_fairque.engine.statistics import queue_stats
from django_fairque.monitoring.formatting import number, per_minute
from django_fairque.monitoring.report import RATE_MINUTES
from django_fairque.monitoring.wait_explanations import with_details

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.engine.scripting.operations import Operation
    from django_fairque.engine.sharding.shards import Shards
    from django_fairque.engine.statistics.queue_stats import Activity, QueueStats, ShardStats

QUEUES_PER_PAGE = 20
"""Number of queues on one page. Each queue needs some eighty reads."""


def _reads(queue: FairQueue) -> list[Callable[[Shards], Operation[Any]]]:
    reads: list[Callable[[Shards], Operation[Any]]] = [
        lambda shards: queue_stats.stats(shards, 0),
        lambda shards: queue_stats.activity(shards, 60, 1),
    ]
    if queue.config.shards > 1:
        reads.append(lambda shards: queue_stats.shard_stats(shards, queue.client))
    return reads


class QueuesPage(AdminPage):
    """Every declared queue in one table."""

    name = "queues"
    title = _("Queues")
    permission = "view_queue"

    def template_context(self) -> dict[str, Any]:
        names, after = queue_names(), self.request.GET.get("after", "")
        begin = names.index(after) + 1 if after in names else 0
        shown = names[begin : begin + QUEUES_PER_PAGE]
        more = shown[-1] if names[begin + QUEUES_PER_PAGE :] else None
        queues = [page_queue(name) for name in shown]
        found = iter(read_in_lockstep([(queue, read) for queue in queues for read in _reads(queue)]))
        rows = [self._row(queue, *islice(found, len(_reads(queue)))) for queue in queues]
        return {"rows": rows, **self.build_page_links(more, "after")}

    def _row(
        self, queue: FairQueue, stats: QueueStats, activity: Activity, shards: Sequence[ShardStats] = ()
    ) -> dict[str, Any]:
        """Return the row of one queue: its figures of now and of the last hour, and links to other pages."""
        finished = [span.finished for span in activity.spans[:-1]]
        return {
            "name": queue.name,
            "stats": stats,
            "activity": activity,
            "shards": shards,
            "overview": self.url("overview", queue=queue.name),
            "here": self.url(self.name, queue=queue.name),
            "depth": [(name, count) for name, count in reversed(stats.depth.items()) if count],
            "rate": sum(finished[-RATE_MINUTES:]) / (60 * RATE_MINUTES),
            "finished": finished,
            "finished_text": describe_line(gettext("Finished in the last hour"), finished, per_minute),
        }

    def get_return_url(self) -> str:
        """Return the URL of the table."""
        return self.url(self.name)

    @Action("change_queue")
    def pause(self) -> str:
        pause = posted_pause(self.request.POST)
        self.queue.pause(note=pause.note, until=pause.until)
        done = gettext("Queue %(name)s is paused: running tasks go on, no other starts.") % {"name": self.queue.name}
        return with_details(done, pause)

    @Action("change_queue")
    def resume(self) -> str:
        self.queue.resume()
        return gettext("Queue %(name)s goes on.") % {"name": self.queue.name}

    @Action("delete_queue")
    def purge(self) -> str:
        def summary(done: int) -> str:
            return ngettext("%(tasks)s task canceled.", "%(tasks)s tasks canceled.", done) % {"tasks": number(done)}

        return self.purge_slice(self.queue.purge, self._count_waiting_tasks, summary, self._question)

    def _count_waiting_tasks(self) -> int:
        """Count the tasks that a purge would cancel."""
        states = self.queue.get_stats(0).states
        return states["queued"] + states["scheduled"] + states["deferred"]

    def _question(self, count: int, *before: str) -> Question:
        sentence = ngettext(
            "%(tasks)s task waits: ready, scheduled or for other tasks. It is canceled for good; running tasks go on.",
            "%(tasks)s tasks wait: ready, scheduled or for other tasks. They are canceled for good; running tasks go on.",
            count,
        )
        text = [*before, sentence % {"tasks": number(count)}, at_most(count)]
        title = gettext("Purge queue %(name)s?") % {"name": self.queue_name}
        return Question(text, gettext("Yes, cancel them"), title)
