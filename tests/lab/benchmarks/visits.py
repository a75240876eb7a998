"""Every page of the admin as somebody looks at it: with filters, second pages, details, and questions before an act."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.contrib.admin.utils import quote
from django.urls import reverse

from django_fairque.engine.inspection.search import Search
from django_fairque.engine.model.records import TaskState

from .filling import NOISY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.test import Client

    from django_fairque.engine.queue.queue import FairQueue


@dataclass(frozen=True)
class Visit:
    """``page`` is the name of a page; ``posted`` asks about an act and does nothing."""

    page: str
    what: str
    url: str
    posted: dict[str, str] | None = None

    def pay(self, client: Client) -> Any:
        answer = client.get(self.url) if self.posted is None else client.post(self.url, self.posted)
        if answer.status_code != 200 or answer.context.get("trouble"):
            raise AssertionError(f"{self} answered {answer.status_code}: {answer.content[:500]!r}")
        return answer


def visits(queue: FairQueue, client: Client) -> Iterator[Visit]:
    """All that there are, to a queue that was filled."""
    yield from _lists(client)
    for state in TaskState:
        yield from _with_next(client, "tasks", state.value, state=state.value)
        # Some deferred tasks wait for one task, others belong to the run: the user selects the first kind.
        user = "waits7" if state is TaskState.DEFERRED else None
        found = queue.find(Search(state, user), 1).tasks
        yield Visit("task", state.value, url("task", quote(found[0].task_id)))
    tasks = queue.run("the-run").tasks
    yield Visit("task", "of a run", url("task", quote(tasks[len(tasks) // 2].task_id)))
    yield Visit("tasks", "of one user", url("tasks", user="user000007"))
    yield Visit("tasks", "all", url("tasks", state="all"))
    yield Visit("tasks", "all of one user", url("tasks", state="all", user=NOISY))
    yield Visit("tasks", "with an argument", url("tasks", argument="order"))
    yield Visit("task", "cancel?", url("task", quote("awaited")), {"action": "cancel"})
    yield Visit("user_report", "", url("user_report", quote(NOISY), hours="48"))
    queue.incidents.open_limit("depth", "ready tasks 100, over 1")
    yield Visit("incident", "", url("incident", quote(queue.incidents.recent()[0].id)))
    yield Visit("runs", "", url("runs"))
    yield Visit("run", "", url("run", quote("the-run")))
    yield Visit("tasks", "of one name", url("tasks", name="shop.bulk"))
    yield Visit("tasks", "nothing matches", url("tasks", user="nobody", name="none"))
    yield Visit("tasks", "cancel all?", url("tasks", user=NOISY), {"action": "cancel_all"})
    yield from _dead_letters(queue, client)
    yield from _with_next(client, "dependencies", "")
    yield Visit("dependencies", "of one with many dependents", url("dependencies", task="awaited"))
    yield Visit("dependencies", "a run", url("dependencies", run="the-run"))


def _lists(client: Client) -> Iterator[Visit]:
    yield Visit("overview", "", url("overview"))
    yield Visit("overview", "24 hours", url("overview", hours="24"))
    yield Visit("overview", "7 days", url("overview", hours="168"))
    yield Visit("live", "", url("live"))
    yield Visit("task_names", "24 hours", url("task_names", hours="24", sort="p95"))
    yield Visit("queues", "", url("queues"))
    yield from _with_next(client, "users", "")
    yield Visit("users", "page 1000", url("users", cursor="0:50000"))
    yield Visit("users", "one", url("users", user=NOISY))
    yield from _with_next(client, "organizations", "")
    yield from _with_next(client, "schedules", "")
    yield Visit("schedules", "edit", url("schedules", edit="schedule007"))
    yield from _with_next(client, "upcoming", "")
    yield from _with_next(client, "workers", "")
    yield Visit("model_events", "", url("model_events"))
    yield Visit("audit", "", url("audit"))


def _dead_letters(queue: FairQueue, client: Client) -> Iterator[Visit]:
    yield Visit("dead_letters", "groups", url("dead_letters"))
    yield Visit("dead_letters", "groups of more", url("dead_letters", look="more"))
    yield from _with_next(client, "dead_letters", "letters", show="letters")
    yield Visit("dead_letters", "of one user", url("dead_letters", show="letters", user_id="lost007"))
    yield Visit("dead_letters", "nothing matches", url("dead_letters", show="letters", user_id="nobody"))
    yield Visit("dead_letters", "requeue all?", url("dead_letters"), {"action": "requeue_all"})
    newest = queue.dlq.get(queue.dlq.groups(1).groups[0].example)  # the newest are counted
    of_user = url("dead_letters", user_id=newest.original_task.user_id)
    yield Visit("dead_letters", "requeue all of a user?", of_user, {"action": "requeue_all"})
    (letter,) = queue.dlq.letters(1).items
    yield Visit("dead_letter", "", url("dead_letter", quote(letter.entry_id)))


def _with_next(client: Client, page: str, what: str, **query: str) -> Iterator[Visit]:
    """A list and, where there is one, its second page."""
    first = Visit(page, what, url(page, **query))
    yield first
    following = first.pay(client).context.get("next")
    if following:
        yield Visit(page, f"{what} page 2".strip(), following)


def url(page: str, *args: str, **query: str) -> str:
    return reverse(f"admin:django_fairque_{page}", args=args, query=query)
