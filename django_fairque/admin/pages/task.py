"""One task: its life, why it is waiting, what it carries, what was tried; to be canceled, run now, or retried."""

from __future__ import annotations

from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from django.contrib.admin.utils import quote
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_fairque.admin.pages.base import Action, AdminPage
from django_fairque.admin.pages.dependencies import neighbors, task_link
from django_fairque.engine.model.records import TaskState
from django_fairque.monitoring.formatting import duration
from django_fairque.monitoring.redaction import as_text, redacted
from django_fairque.monitoring.wait_explanations import reasons
from django_fairque.tasks import canceling

if TYPE_CHECKING:
    from django_fairque.engine.model.task import Task

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
        if not canceling.cancel(self.queue, self.key, self.canceled_by):
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
