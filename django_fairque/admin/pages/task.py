"""One task: its life, why it is waiting, what it carries, what was tried; to be canceled, run now, or retried."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib.admin.utils import quote, unquote
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_fairque.admin.pages.base import Action, ConfirmingPage, canceled_by, moment
from django_fairque.engine.model.records import TaskState
from django_fairque.monitoring.formatting import duration
from django_fairque.monitoring.redaction import as_text, redacted
from django_fairque.monitoring.wait_explanations import reasons
from django_fairque.tasks import canceling

if TYPE_CHECKING:
    from datetime import datetime

    from django.http import HttpRequest
    from django_stubs_ext import StrOrPromise

    from django_fairque.engine.dependencies.dependencies import DependencyView
    from django_fairque.engine.model.task import Task
    from django_fairque.engine.queue.queue import FairQueue

RELATED_TASKS_SHOWN = 20
"""Tasks of a list that are named."""


class TaskPage(ConfirmingPage):
    """Its id is the last part of the path, as the admin quotes keys: it may hold any characters."""

    name = "task"
    path = "tasks/id-<str:quoted>/"
    title: ClassVar[StrOrPromise] = gettext_lazy("Task")
    permission = "view_task"
    template = "admin/django_fairque/task.html"
    in_menu = False
    list_name = "tasks"

    @property
    def task_id(self) -> str:
        return unquote(self.kwargs["quoted"])

    def template_context(self, queue: FairQueue) -> dict[str, Any]:
        task = queue.get_task(self.task_id)
        may_change, is_dead = self.may("change_task"), task.state is TaskState.FAILED
        return {
            "task": task,
            "reasons": [
                {"text": reason.text, "tasks": [self._link(each) for each in reason.tasks]}
                for reason in reasons(queue, task.task_id)
            ],
            "timeline": timeline(task),
            "sla": sla_state(task),
            "attempts": [{"at": moment(each.at), "it": each} for each in queue.history(task.task_id)],
            "payload": as_text(redacted(task.payload)),
            "result": as_text(redacted(task.result)) if task.state is TaskState.FINISHED else None,
            "progress": queue.get_progress(task.task_id),
            "others": self._others(queue.dependencies(task.task_id, RELATED_TASKS_SHOWN)),
            "graph_url": self.link("dependencies", task=task.task_id),
            "run_url": self.link("dependencies", run=task.run_id),
            "user_url": self.url("tasks", state=task.state.value, user=task.user_id),
            "dead_url": self._dead_letter(queue) if is_dead else "",
            "can_cancel": may_change and not task.state.is_ended,
            "can_run": may_change and task.state is TaskState.SCHEDULED,
            "can_retry": is_dead and self.may("change_deadletter"),
        }

    def _link(self, task_id: str) -> dict[str, str]:
        return {"id": task_id, "url": self.url("task", quote(task_id))}

    def _dead_letter(self, queue: FairQueue) -> str:
        entry = queue.dlq.of_task(self.task_id)
        return "" if entry is None else self.link("dead_letter", quote(entry.entry_id))

    def _others(self, view: DependencyView) -> list[dict[str, Any]]:
        """The tasks around this one, as lists with their states."""
        lists = (
            (_("Waits for"), view.blocked, view.blocked_count),
            (_("Waited for by"), view.waiting, view.waiting_count),
            (_("Declared to depend on"), view.parents, len(view.parents)),
        )
        found = []
        for title, ids, count in lists:
            nodes = [view.graph.nodes.get(each) for each in ids[:RELATED_TASKS_SHOWN]]
            tasks = [
                {**self._link(each), "state": node.state.value if node and node.state else ""}
                for each, node in zip(ids, nodes, strict=False)
            ]
            if count:
                found.append({"title": title, "tasks": tasks, "more": count - len(tasks)})
        return found

    def cancel(self, queue: FairQueue, request: HttpRequest) -> str:
        if not canceling.cancel(queue, self.task_id, canceled_by(request)):
            raise ValueError(_("The task had ended before."))
        return _("The task was canceled, with what depends on it.")

    def run_now(self, queue: FairQueue, request: HttpRequest) -> str:
        if not queue.run_now(self.task_id):
            raise ValueError(_("The task is not scheduled (any more)."))
        return _("The task was queued.")

    def retry(self, queue: FairQueue, request: HttpRequest) -> str:
        entry = queue.dlq.of_task(self.task_id)
        if entry is None:
            raise ValueError(_("The task is no dead letter (any more)."))
        queue.dlq.requeue(entry.entry_id)
        return _("The task was queued, with a fresh retry budget.")

    actions: ClassVar[dict[str, Action]] = {
        "cancel": Action("change_task", cancel, lambda page, _request: page.task_id),
        "run_now": Action("change_task", run_now, lambda page, _request: page.task_id),
        "retry": Action("change_deadletter", retry, lambda page, _request: page.task_id),
    }


def timeline(task: Task) -> list[tuple[str, datetime | None, str]]:
    """What happened when, in order: a name, the moment, and how long after the one before."""
    is_running = task.state in (TaskState.STARTED, TaskState.FINISHED, TaskState.FAILED)
    moments = [
        (_("created"), task.created_at),
        (_("due"), task.execute_after),
        (_("ready"), task.ready_at),
        (_("started"), task.started_at if is_running else None),
        (_("ended"), task.ended_at if task.state.is_ended else None),
    ]
    known = sorted(((at, name) for name, at in moments if at is not None), key=lambda each: each[0])
    found: list[tuple[str, datetime | None, str]] = []
    before = None
    for at, name in known:
        after = "" if before is None else _("after %(time)s") % {"time": duration(at - before)}
        found.append((name, moment(at), after))
        before = at
    return found


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
    return {"by": moment(task.sla_deadline), "text": text}
