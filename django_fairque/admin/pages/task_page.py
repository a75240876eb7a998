"""The page of one task: its state, the reasons for a wait with remedies, attempts, arguments, and related tasks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from django.contrib.admin.utils import quote
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_fairque.admin.pages.base import Action
from django_fairque.admin.pages.dead_letters import EDITABLE_PAYLOAD_MAX_BYTES, PayloadEditor
from django_fairque.admin.pages.dependencies import (
    DRAWING_MAX_TASKS,
    GRAPH_MAX_STEPS,
    neighbors,
    open_subtree,
    task_link,
)
from django_fairque.admin.pages.limits import describe_values
from django_fairque.engine.inspection.worker_activity import UNRESPONSIVE_FIELD, decode_activity
from django_fairque.engine.limits.limits import parse_limit_id
from django_fairque.engine.model import payload as json_payload
from django_fairque.engine.model.priority import Priority
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.model.task import Task
from django_fairque.monitoring.formatting import duration, number
from django_fairque.monitoring.redaction import as_text, redact_value, redacted_text
from django_fairque.monitoring.wait_explanations import describe_start, reasons
from django_fairque.tasks import registry, results
from django_fairque.tasks.execution import decode_arguments

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

    from django_fairque.engine.model.lanes import Lane
    from django_fairque.engine.model.records import Attempt
    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.monitoring.wait_explanations import Reason

RELATED_TASKS_SHOWN = 20
"""Maximum number of related tasks that a list names."""
LEAD_TITLES: dict[TaskState, StrOrPromise] = {
    TaskState.SCHEDULED: gettext_lazy("Why is it waiting?"),
    TaskState.DEFERRED: gettext_lazy("Why is it waiting?"),
    TaskState.QUEUED: gettext_lazy("Why is it waiting?"),
    TaskState.STARTED: gettext_lazy("What is it doing?"),
    TaskState.FINISHED: gettext_lazy("Result"),
    TaskState.FAILED: gettext_lazy("Why did it fail?"),
    TaskState.CANCELED: gettext_lazy("Why was it canceled?"),
}
"""The heading of the first part of the page, by the task's state."""
RUN_AGAIN_STATES = (TaskState.FINISHED, TaskState.CANCELED)
RUN_NOW = ("run_now", gettext_lazy("Run now"), "change_task")
REMEDIES: dict[str, tuple[str, StrOrPromise, str]] = {
    "scheduled": RUN_NOW,
    "retry": RUN_NOW,
    "crashed": RUN_NOW,
    "user_paused": ("resume_user", gettext_lazy("Resume the user"), "change_user"),
    "organization_paused": ("resume_organization", gettext_lazy("Resume the organization"), "change_user"),
    "queue_paused": ("resume_queue", gettext_lazy("Resume the queue"), "change_queue"),
    "dead": ("retry", gettext_lazy("Retry"), "change_deadletter"),
    "expired": ("retry", gettext_lazy("Retry"), "change_deadletter"),
}
"""The remedy for each kind of reason for a wait: the action, its button and the permission that it needs."""


class TaskPage(PayloadEditor):
    """The page of one task, whose id is the last part of the path."""

    name = "task"
    path = "tasks/id-<str:key>/"
    title = gettext_lazy("Task")
    permission = "view_task"
    list_name = "tasks"

    new_task_id = ""
    """The id of the new task, if the action has enqueued this task again."""

    def get_return_url(self) -> str:
        return self.url(self.name, quote(self.new_task_id)) if self.new_task_id else super().get_return_url()

    def template_context(self) -> dict[str, Any]:
        queue, task = self.queue, self.queue.get_task(self.key)
        view = queue.dependencies(task.task_id, RELATED_TASKS_SHOWN, layers=1)
        is_dead = task.state is TaskState.FAILED
        entry = queue.dlq.of_task(task.task_id) if is_dead else None
        may_see_logs = self.may("view_tasklog")
        attempts, logs = queue.logs.with_history(task.task_id) if may_see_logs else (queue.history(task.task_id), [])
        bars = attempt_bars(task, attempts, time.time())
        return {
            "task": task,
            "lead_title": LEAD_TITLES[task.state],
            "lead": self._lead(task, attempts),
            "last_frame": last_frame(redacted_text(attempts[-1].traceback)) if is_dead and attempts else "",
            "timeline": timeline(task),
            "sla": sla_state(task),
            "limits": [
                (limit.key, describe_values(limit), task.user_id if limit.is_of_user else "") for limit in task.limits
            ],
            "bars": bars,
            "longest_bar": max((bar.total for bar in bars), default=0.0) or 1.0,
            "attempts": attempts,
            "logs": logs,
            **self.payload_context(task),
            "result": as_text(redact_value(task.result)) if task.state is TaskState.FINISHED else None,
            "progress": None if task.started_at is None else queue.get_progress(task.task_id),
            "others": neighbors(self, view, RELATED_TASKS_SHOWN, declared=True),
            "graph_url": self.link("dependencies", task=task.task_id),
            "run_url": self.link("run", quote(task.run_id)) if task.run_id else "",
            "user_url": self.url("tasks", state=task.state.value, user=task.user_id),
            "dead_url": self.link("dead_letter", quote(entry.entry_id)) if entry else "",
            "can_run_again": self.may("change_task") and task.state in RUN_AGAIN_STATES,
            "here": self.url(self.name, quote(self.key)),
            "can_cancel": self.may("change_task") and not task.state.is_ended,
        }

    def _lead(self, task: Task, attempts: Sequence[Attempt]) -> list[dict[str, Any]]:
        """Return the sentences at the top of the page: why the task waits, or how it ended. Each sentence has the
        actions that can end the wait.
        """
        if task.state is TaskState.FINISHED:
            return [{"text": text} for text in past_times(task)]
        if task.state is TaskState.CANCELED:
            return [{"text": cancel_reason(attempts)}]
        lines = [self._line(task, reason) for reason in reasons(self.queue, task.task_id)]
        if task.state is TaskState.QUEUED and (text := describe_start(self.queue.starts_in(task.task_id))):
            lines.insert(0, {"text": text})
        if task.state is TaskState.STARTED and task.started_at is not None:
            text, limit = _("A worker has had it for %(time)s."), time_limit(self.queue, task)
            if limit is not None:
                text = _("A worker has had it for %(time)s; its time limit is %(limit)s.")
            passed = duration(max(0.0, time.time() - task.started_at))
            lines.insert(0, {"text": text % {"time": passed, "limit": duration(limit or 0.0)}})
            lines[1:1] = [{"text": sentence} for sentence in line_of_code(self.queue, task)]
        return lines

    def _line(self, task: Task, reason: Reason) -> dict[str, Any]:
        line: dict[str, Any] = {"text": reason.text, "tasks": [task_link(self, task_id) for task_id in reason.tasks]}
        action, label, permission = REMEDIES.get(reason.kind, ("", "", ""))
        is_meant = {"run_now": TaskState.SCHEDULED, "retry": TaskState.FAILED}.get(action, task.state) is task.state
        if action and is_meant and self.may(permission):
            line.update(action=action, label=label)
        elif reason.kind in ("capped", "throttled"):
            line.update(url=self.link("users", user=task.user_id), label=_("Limits of the user"))
        elif reason.kind.startswith("limit_"):
            key, user = parse_limit_id(task.waits_at.encode())
            line.update(url=self.link("limits", limit=key, user=user or ""), label=_("The limit"))
        elif reason.kind == "depends":
            line.update(url=self.link("dependencies", task=task.task_id), label=_("Show the graph"))
        return line

    @Action("change_task")
    def cancel(self) -> str:
        view = self.queue.dependencies(self.key, DRAWING_MAX_TASKS, GRAPH_MAX_STEPS)
        others = len([task_id for task_id in open_subtree(view) if task_id != self.key])
        count = max(others, view.waiting_count)
        if count:
            text = ngettext(
                "%(task)s is canceled, and %(count)s task that depends on it.",
                "%(task)s is canceled, and %(count)s tasks that depend on it.",
                count,
            )
            more = "" if view.graph.is_whole else " " + _("There may be more, which are canceled too.")
            self.ask_first(text % {"task": self.key, "count": number(count)} + more, _("Cancel them"))
        if not results.cancel(self.queue, self.key, self.canceled_by):
            raise ValueError(_("The task had ended before."))
        return _("The task was canceled, and so were the tasks that depend on it.")

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
        self.queue.dlq.requeue(entry.entry_id, lane=self.lane)
        return self.with_lane(_("The task was queued, with a fresh retry budget."))

    @Action("change_task")
    def edit(self) -> str:
        task = self._ended_task()
        if len(task.payload_bytes) > EDITABLE_PAYLOAD_MAX_BYTES:
            raise ValueError(_("The payload is too large to be shown in a form: enqueue the task in code."))
        self.edits = True
        return _("The payload is shown as it is, to run the task again")

    @Action("change_task")
    def run_again(self) -> str:
        """Enqueue a new task with the posted payload. If the payload is refused, it stays in the form."""
        self.new_task_id = self.use_payload(
            lambda payload: enqueue_again(self.queue, self._ended_task(), payload, self.lane)
        )
        return self.with_lane(_("Task %(task)s was enqueued.") % {"task": self.new_task_id})

    def _ended_task(self) -> Task:
        task = self.queue.get_task(self.key)
        if task.state not in RUN_AGAIN_STATES:
            raise ValueError(
                _("Only a finished or canceled task can be run again: this one has not ended, or is a dead letter.")
            )
        return task

    @Action("change_user")
    def resume_user(self) -> str:
        user = self.queue.get_task(self.key).user_id
        self.queue.user(user).resume()
        return _("User %(user)s is resumed.") % {"user": user}

    @Action("change_user")
    def resume_organization(self) -> str:
        name = self.queue.wait_reason(self.key).user.organization
        if name is None:
            raise ValueError(_("The task's user belongs to no organization (any more)."))
        self.queue.organization(name).resume()
        return _("Organization %(organization)s is resumed.") % {"organization": name}

    @Action("change_queue")
    def resume_queue(self) -> str:
        self.queue.resume()
        return _("The queue is resumed.")


def enqueue_again(queue: FairQueue, task: Task, text: str, lane: Lane) -> str:
    """Enqueue a task with this payload in this lane, for the same user and with the same options. Return the id of the
    new task.

    The new task has no dependencies and no unique key, and belongs to no run.

    Raises:
        FairQueueError, ValueError: the payload is not JSON, does not fit the function, or the queue refuses the task.
    """
    payload = json_payload.loads(text.encode())
    definition = registry.find(task.name) if task.name else None
    limits = task.limits
    if definition is not None:
        limits = definition.build_limits(task.user_id, *decode_arguments(payload, definition), queue.config)
    copy = Task.create(
        task.user_id,
        task.promoted_from or task.priority if lane == "normal" else Priority.NORMAL,
        payload,
        name=task.name,
        lane=lane,
        max_retries=task.max_retries,
        max_deliveries=task.max_deliveries or None,
        sla=task.sla,
        timeout=task.timeout,
        limits=limits,
    )
    return queue.push(copy).task_id


def past_times(task: Task) -> list[str]:
    """Return a sentence about how long a finished task waited, and how long a worker had it; an empty text if these
    times are unknown.

    A worker has a task from the moment when the server hands it out until the server has its outcome. The run time of
    the task's code is shorter.
    """
    if task.started_at is None or task.ended_at is None:
        return []
    facts = {"time": duration(max(0.0, task.ended_at - task.started_at))}
    if task.ready_at is None:
        return [_("A worker had it for %(time)s.") % facts]
    facts["waited"] = duration(max(0.0, task.started_at - task.ready_at))
    return [_("It waited for %(waited)s, then a worker had it for %(time)s.") % facts]


def line_of_code(queue: FairQueue, task: Task) -> list[str]:
    """Return a sentence about the line of code that a running task executes; empty if its worker reports no lines."""
    for record in queue.workers(task.worker) if task.worker else ():
        report = decode_activity(record)
        if report is None:
            continue
        facts = {"line": report.lines.get(task.task_id, ""), "time": duration(max(0.0, time.time() - report.at))}
        if facts["line"]:
            text = _("It is at %(line)s (sampled %(time)s ago).")
            if record.info.get(UNRESPONSIVE_FIELD):
                text = _("Its process does not respond. %(time)s ago it was at %(line)s.")
            return [text % facts]
        if record.info.get(UNRESPONSIVE_FIELD):
            text = _("Its process does not respond. The last sample, of %(time)s ago, is from before this task began.")
            return [text % facts]
    return []


def cancel_reason(attempts: Sequence[Attempt]) -> str:
    """Return the reason for which a task was canceled or discarded, from its history."""
    last = next((attempt for attempt in reversed(attempts) if attempt.kind in ("canceled", "discarded")), None)
    if last is None or not last.error:
        return _("No reason was given.")
    return redacted_text(last.error)


def last_frame(traceback: str) -> str:
    """Return the end of a traceback: the place where the error was raised, and the error. Empty if the traceback names
    no place.
    """
    lines = traceback.rstrip().split("\n")
    places = [number for number, line in enumerate(lines) if line.startswith('  File "')]
    return "\n".join(lines[places[-1] :]) if places else ""


def time_limit(queue: FairQueue, task: Task) -> float | None:
    """Return the time limit in seconds that the task, its function or its queue sets; None if only the limit of a
    worker applies.
    """
    definition = registry.find(task.name) if task.name else None
    own = None if definition is None else definition.options.timeout
    return next((limit for limit in (task.timeout, own, queue.config.default_task_timeout) if limit is not None), None)


@dataclass(frozen=True)
class AttemptBar:
    """One attempt as three lengths of time in seconds: until the task could start, until it started, and until it
    ended.
    """

    kind: str
    scheduled: float
    waited: float
    ran: float | None
    """Seconds for which a worker had the attempt; None if it has not started."""

    @property
    def total(self) -> float:
        return self.scheduled + self.waited + (self.ran or 0.0)

    @property
    def parts(self) -> list[tuple[str, float, float]]:
        """The parts of the bar: CSS class, start and length."""
        ready = self.scheduled + self.waited
        parts = [("scheduled", 0.0, self.scheduled), ("waited", self.scheduled, self.waited), ("ran", ready, self.ran)]
        return [(name, begin, length) for name, begin, length in parts if length]


def attempt_bars(task: Task, attempts: Sequence[Attempt], now: float) -> list[AttemptBar]:
    """Return the bars of the attempts whose times are in the history, and of the attempt that is running or will come
    next.
    """
    bars: list[AttemptBar] = []
    begin, last_start = task.created_at, None

    def add(kind: str, ready: float | None, started: float | None, end: float) -> None:
        end = max(begin, end)
        start = end if started is None else min(max(begin, started), end)
        ready = start if ready is None else min(max(begin, ready), start)
        bars.append(AttemptBar(kind, ready - begin, start - ready, None if started is None else end - start))

    for attempt in attempts:
        if attempt.started_at is not None and attempt.started_at != last_start:
            add(attempt.kind, attempt.ready_at, attempt.started_at, attempt.at)
            last_start = attempt.started_at
        begin = max(begin, attempt.at)
    if task.state in (TaskState.STARTED, TaskState.FINISHED) and task.started_at is not None:
        add(task.state.value, task.ready_at, task.started_at, task.ended_at or now)
    elif not task.state.is_ended:
        add(task.state.value, task.ready_at if task.state is TaskState.QUEUED else None, None, now)
    return bars


def timeline(task: Task) -> list[tuple[str, float, str]]:
    """Return the task's events in order: the name, the time, and the time since the previous event."""
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
    """Return the SLA's deadline, and whether the task started before it. None if the task has no deadline yet."""
    if task.sla_deadline is None:
        return None
    if task.started_at is None or task.state is TaskState.QUEUED:
        text = ""
    elif task.started_at <= task.sla_deadline:
        text = _("kept")
    else:
        text = _("missed by %(time)s") % {"time": duration(task.started_at - task.sla_deadline)}
    return {"by": task.sla_deadline, "text": text}
