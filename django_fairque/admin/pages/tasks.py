"""The list of tasks, with actions on one, selected, or all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from django.contrib import messages
from django.contrib.admin.utils import quote
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_fairque.admin.pages.base import Action, AdminPage, Question
from django_fairque.engine.inspection.search import MAX_RECORDS_READ, Search
from django_fairque.engine.model.records import TaskState
from django_fairque.monitoring.translations import word
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
        text = ngettext(
            "%(count)d task is canceled, and what depends on it.",
            "%(count)d tasks are canceled, and what depends on them.",
            len(ids),
        )
        self.ask_first(text % {"count": len(ids)}, _("Cancel them"))
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
