"""The list of tasks, with actions on one, selected, or all of them; and the page of one task: its life, why it is waiting, its
arguments and attempts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from django.contrib import messages
from django.contrib.admin.utils import quote
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_fairque.admin.pages.base import Action, AdminPage, Question
from django_fairque.admin.pages.dependencies import neighbors, task_link
from django_fairque.engine.inspection.search import MAX_RECORDS_READ, Search
from django_fairque.engine.model.records import TaskState
from django_fairque.monitoring.formatting import duration
from django_fairque.monitoring.redaction import as_text, redacted
from django_fairque.monitoring.translations import word
from django_fairque.monitoring.wait_explanations import reasons
from django_fairque.tasks import results

if TYPE_CHECKING:
    from django_fairque.engine.model.task import Task

TASKS_PER_PAGE = 50
TASKS_EXAMINED = 1000
"""Records that one page looks through for a user or a name."""
TASKS_PER_REQUEST = 1000
"""Tasks that one request changes; then the user confirms to go on."""
CANCELABLE = (TaskState.SCHEDULED, TaskState.DEFERRED, TaskState.QUEUED, TaskState.STARTED)


class TasksPage(AdminPage):
    """What one looks for stands in the query: ``state``, ``user``, ``name``, ``worker``; ``id`` leads to the task."""

    name = "tasks"
    title = gettext_lazy("Tasks")
    permission = "view_task"
    refreshes = False  # a selection would be lost

    def get(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        task_id = request.GET.get("id", "").strip()
        if task_id:
            return HttpResponseRedirect(self.url("task", quote(task_id)))
        return super().get(request, **kwargs)

    def search(self) -> Search:
        """What the query asks for; ``ValueError`` for a state that there is not."""
        state, user, name, worker = (self.request.GET.get(key) or None for key in ("state", "user", "name", "worker"))
        states = [each.value for each in TaskState]
        if state is not None and state not in states:
            facts = {"state": state, "known": ", ".join(states)}
            raise ValueError(_("There is no state %(state)s: it is one of %(known)s.") % facts)
        return Search(TaskState(state or TaskState.QUEUED), user, name, TASKS_EXAMINED, worker)

    def template_context(self) -> dict[str, Any]:
        stats = self.queue.get_stats(0)
        try:
            search = self.search()
            found = self.queue.find(search, TASKS_PER_PAGE, self.request.GET.get("cursor"))
        except ValueError as error:
            messages.error(self.request, str(error))
            search = Search(TaskState.QUEUED)
            found = self.queue.find(search, TASKS_PER_PAGE)
        requested = {"user": search.user_id, "name": search.name, "worker": search.worker}
        query = {key: value for key, value in requested.items() if value is not None}
        return {
            "search": search,
            "found": found,
            "rows": [(task, self.url("task", quote(task.task_id)), _since(task)) for task in found.tasks],
            "states": [
                (state, stats.states[state.value], self.url(self.name, **query, state=state.value))
                for state in TaskState
            ],
            **self.paging(found.cursor, state=search.state.value, **query),
            "can_cancel": search.state in CANCELABLE and self.may("change_task"),
            "can_run": search.state is TaskState.SCHEDULED and self.may("change_task"),
        }

    @property
    def subject(self) -> str:
        if "all" not in self.request.POST["action"]:
            return ", ".join(self._selected())
        search = self.search()
        return ", ".join(each for each in (search.state.value, search.user_id, search.name, search.worker) if each)

    def _selected(self) -> list[str]:
        ids = self.posted_list("task")
        if not ids:
            raise ValueError(_("Select the tasks first."))
        return ids[:TASKS_PER_REQUEST]

    @Action("change_task")
    def cancel(self) -> str:
        ids = self._selected()
        done = self._cancel(ids)
        return _summary(ngettext("%d task was canceled.", "%d tasks were canceled.", done) % done, done, len(ids))

    @Action("change_task")
    def run_now(self) -> str:
        ids = self._selected()
        done = self.queue.run_now(*ids)
        return _summary(ngettext("%d task was queued.", "%d tasks were queued.", done) % done, done, len(ids))

    @Action("change_task")
    def cancel_all(self) -> str:
        search = self.search()
        if search.state not in CANCELABLE:
            raise ValueError(_("Tasks that have ended can't be canceled."))
        return self._all(search, self._cancel, _("Cancel these tasks"))

    @Action("change_task")
    def run_all_now(self) -> str:
        search = self.search()
        if search.state is not TaskState.SCHEDULED:
            raise ValueError(_("Only scheduled tasks can be run before their time."))
        return self._all(search, lambda ids: self.queue.run_now(*ids), _("Run these tasks now"))

    def _cancel(self, ids: list[str]) -> int:
        return results.cancel_many(self.queue, ids, self.canceled_by)

    def _all(self, search: Search, act: Callable[[list[str]], int], yes: str) -> str:
        """A slice of all that match, once their count was confirmed; then the question whether to go on.

        No more than were counted then: those that came later were not confirmed.
        """
        found = self.queue.matching(replace(search, look_at=MAX_RECORDS_READ))
        ids = found.task_ids
        if not self.is_confirmed:
            if not ids:
                raise ValueError(_("No task matches (any more)."))
            text = _how_many(search, len(ids), is_whole=found.is_whole)
            raise Question([text], yes, fields={"done": "0", "left": str(len(ids))})
        before, allowed = int(self.posted_number("done")), int(self.posted_number("left"))
        some = ids[: min(TASKS_PER_REQUEST, allowed)]
        if not some and not before:
            raise ValueError(_("No task matches (any more)."))
        done = act(some) if some else 0
        left = min(allowed, len(ids)) - len(some)
        total = before + done
        sentence = ngettext("%d task was changed.", "%d tasks were changed.", total) % total
        if not left or not done:
            return sentence
        self.log(sentence)
        text = _("%(done)d of %(all)d tasks are done. Go on?") % {"done": total, "all": total + left}
        raise Question([text], yes, fields={"done": str(total), "left": str(left)})


def _since(task: Task) -> float:
    """Since when it has its state; due when, if it is scheduled."""
    moments = {
        TaskState.SCHEDULED: task.execute_after,
        TaskState.QUEUED: task.ready_at,
        TaskState.STARTED: task.started_at,
        TaskState.DEFERRED: task.created_at,
    }
    return moments.get(task.state, task.ended_at) or task.created_at


def _how_many(search: Search, number: int, *, is_whole: bool) -> str:
    words = {"count": number, "state": word(search.state.value), "looked": MAX_RECORDS_READ}
    if is_whole:
        return ngettext("%(count)d %(state)s task matches.", "%(count)d %(state)s tasks match.", number) % words
    text = _(
        "%(count)d of the first %(looked)d %(state)s tasks match; there are more, which are left for the next time."
    )
    return text % words


def _summary(sentence: str, done: int, selected: int) -> str:
    """The message after an action on selected tasks; some may have changed state before it."""
    if not done:
        raise ValueError(_("Nothing was done: all of them had moved on before."))
    if done == selected:
        return sentence
    text = _("%(summary)s The others (%(missing)d) had moved on before.")
    return text % {"summary": sentence, "missing": selected - done}


RELATED_TASKS_SHOWN = 20
"""Tasks of a list that are named."""


class TaskPage(AdminPage):
    """Its id is the last part of the path."""

    name = "task"
    path = "tasks/id-<str:key>/"
    title = gettext_lazy("Task")
    permission = "view_task"
    in_menu = False
    list_name = "tasks"

    @property
    def subject(self) -> str:
        return self.key

    def template_context(self) -> dict[str, Any]:
        queue, task = self.queue, self.queue.get_task(self.key)
        view = queue.dependencies(task.task_id, RELATED_TASKS_SHOWN)
        may_change, is_dead = self.may("change_task"), task.state is TaskState.FAILED
        entry = queue.dlq.of_task(task.task_id) if is_dead else None
        return {
            "task": task,
            "reasons": [
                {"text": reason.text, "tasks": [task_link(self, each) for each in reason.tasks]}
                for reason in reasons(queue, task.task_id)
            ],
            "timeline": timeline(task),
            "sla": sla_state(task),
            "attempts": queue.history(task.task_id),
            "payload": as_text(redacted(task.payload)),
            "result": as_text(redacted(task.result)) if task.state is TaskState.FINISHED else None,
            "progress": queue.get_progress(task.task_id),
            "others": neighbors(self, view, RELATED_TASKS_SHOWN, declared=True),
            "graph_url": self.link("dependencies", task=task.task_id),
            "run_url": self.link("dependencies", run=task.run_id),
            "user_url": self.url("tasks", state=task.state.value, user=task.user_id),
            "dead_url": self.link("dead_letter", quote(entry.entry_id)) if entry else "",
            "can_cancel": may_change and not task.state.is_ended,
            "can_run": may_change and task.state is TaskState.SCHEDULED,
            "can_retry": is_dead and self.may("change_deadletter"),
        }

    @Action("change_task")
    def cancel(self) -> str:
        if not results.cancel(self.queue, self.key, self.canceled_by):
            raise ValueError(_("The task had ended before."))
        return _("The task was canceled, with what depends on it.")

    @Action("change_task")
    def run_now(self) -> str:
        if not self.queue.run_now(self.key):
            raise ValueError(_("The task is not scheduled (any more)."))
        return _("The task was queued.")

    @Action("change_deadletter")
    def retry(self) -> str:
        entry = self.queue.dlq.of_task(self.key)
        if entry is None:
            raise ValueError(_("The task is no dead letter (any more)."))
        self.queue.dlq.requeue(entry.entry_id)
        return _("The task was queued, with a fresh retry budget.")


def timeline(task: Task) -> list[tuple[str, float, str]]:
    """What happened when, in order: a name, the moment, and how long after the one before."""
    is_running = task.state in (TaskState.STARTED, TaskState.FINISHED, TaskState.FAILED)
    moments = [
        (_("created"), task.created_at),
        (_("due"), task.execute_after),
        (_("ready"), task.ready_at),
        (_("started"), task.started_at if is_running else None),
        (_("ended"), task.ended_at if task.state.is_ended else None),
    ]
    known = sorted(((name, at) for name, at in moments if at is not None), key=itemgetter(1))
    lengths = [duration(at - before) for (_name, before), (_next, at) in pairwise(known)]
    texts = ["", *(_("after %(time)s") % {"time": length} for length in lengths)]
    return [(name, at, text) for (name, at), text in zip(known, texts, strict=True)]


def sla_state(task: Task) -> dict[str, Any] | None:
    """By when it was to start, and whether it did; None while it is not ready, so that no deadline is set yet."""
    if task.sla_deadline is None:
        return None
    if task.started_at is None or task.state is TaskState.QUEUED:
        text = ""
    elif task.started_at <= task.sla_deadline:
        text = _("kept")
    else:
        text = _("missed by %(time)s") % {"time": duration(task.started_at - task.sla_deadline)}
    return {"by": task.sla_deadline, "text": text}
