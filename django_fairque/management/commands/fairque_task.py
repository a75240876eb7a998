"""``manage.py fairque_task``: shows single tasks and pipeline runs, explains why tasks wait, and cancels tasks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from django.utils.timezone import override as override_time_zone

from django_fairque.engine.model.lanes import class_name, class_of
from django_fairque.engine.model.records import TaskState
from django_fairque.management.base import Parser, QueueCommand, pages, when
from django_fairque.management.listing import Column, Listing
from django_fairque.monitoring.formatting import pluralize
from django_fairque.monitoring.redaction import as_line, redact_value
from django_fairque.monitoring.report import limit_values
from django_fairque.monitoring.wait_explanations import describe_start, reasons
from django_fairque.tasks import results

if TYPE_CHECKING:
    from django_fairque.engine.model.limits import TaskLimit
    from django_fairque.engine.model.task import Task

DEPENDENTS_SHOWN = 20


class Command(QueueCommand):
    steers = True
    help = "List tasks, look at one (its history, what it waits for, who waits for it), cancel it; the same for a run."

    def add_arguments(self, parser: Parser) -> None:
        super().add_arguments(parser)
        add_action = self.add_actions(parser)
        listing = add_action("list", "tasks of one state, or of all")
        states = [state.value for state in TaskState]
        listing.add_argument("--state", type=str.lower, choices=states, help="only in this state")
        listing.add_argument("--user", metavar="ID", help="only of this user")
        TASK_LIST.add_options(listing)
        for name, text in (
            ("show", "a task: its record, why it waits, its history and dependencies"),
            ("cancel", "cancel a task, and what depends on it"),
            ("run", "a run of a pipeline: its state and its tasks"),
            ("cancel-run", "cancel what has not ended of a run"),
            ("xcom", "the values that the tasks of a run have passed on"),
        ):
            action = add_action(name, text, id="its id")
            if name == "run":
                RUN_TASK_LIST.add_options(action)
            if name in ("show", "xcom"):
                self.add_unredacted(action)
            if name == "show":
                action.add_argument("--logs", action="store_true", help="also the captured log lines of its attempts")

    def _list(self) -> Iterator[str]:
        state, user, size = self.options["state"], self.options["user"], TASK_LIST.page_size(self.options)
        found = pages(lambda cursor: self.queue.tasks(state, user, size, cursor))
        return TASK_LIST.lines((task for page in found for task in page.items), self.options)

    def _cancel(self) -> Iterator[str]:
        yield "canceled" if results.cancel(self.queue, self.options["id"]) else "it had ended before"

    def _cancel_run(self) -> Iterator[str]:
        yield f"{pluralize(results.cancel_run(self.queue, self.options['id']), 'task')} canceled"

    def _show(self) -> Iterator[str]:
        queue, task_id = self.queue, self.options["id"]
        task = queue.get_task(task_id)
        raw = task.payload_bytes.decode("utf-8", "replace")
        for name, value in (
            ("task", task.task_id),
            ("state", task.state.value),
            ("user", task.user_id),
            ("name", task.name or "-"),
            ("lane", task.lane if task.lane != "normal" else ""),
            ("priority", _describe_priority(task)),
            ("created", when(task.created_at)),
            ("due", task.execute_after and when(task.execute_after)),
            ("SLA", task.sla_deadline and f"to start by {when(task.sla_deadline)}"),
            ("started", task.started_at and f"{when(task.started_at)} by {task.worker}"),
            ("ended", task.ended_at and when(task.ended_at)),
            ("retries", f"{task.retry_count} of {task.max_retries}"),
            ("starts", f"at most {task.max_deliveries} without an outcome" if task.max_deliveries else ""),
            ("given back", f"{pluralize(task.given_back, 'time')} after it had begun" if task.given_back else ""),
            *(("limit", _describe_limit(limit)) for limit in task.limits),
            ("run", task.run_id),
            ("trace", task.traceparent),
            ("payload", raw if self.options["unredacted"] else as_line(task)),
            ("result", _removed_result(task) if task.result is None else self._json(task.result)),
        ):
            if value:
                yield f"{name:9} {value}"
        with override_time_zone("UTC"):
            waits = reasons(queue, task_id)
            start = describe_start(queue.starts_in(task_id)) if task.state is TaskState.QUEUED else ""
        if start:
            yield f"starts    {start}"
        yield from (f"why       {reason.text}" for reason in waits)
        view = queue.dependencies(task_id)
        yield from _describe_tasks("waits for", view.blocked, view.blocked_count, view.graph.nodes)
        yield from _describe_tasks("waited for by", view.waiting, view.waiting_count, view.graph.nodes)
        for attempt in queue.history(task_id):
            yield f"- {when(attempt.at)}  {attempt.kind}  {attempt.worker}  {self.redact(attempt.error)}".rstrip()
        if self.options["logs"]:
            yield from self._logs(task_id)

    def _logs(self, task_id: str) -> Iterator[str]:
        logs = self.queue.logs.of_task(task_id)
        if not logs:
            yield "no log lines: the task was not declared with capture_logs, or has logged nothing that its loggers let pass"
        for log in logs:
            omitted = f" ({log.omitted:,} before them were not kept)" if log.omitted else ""
            yield f"log of attempt {log.attempt} by {log.worker}, {pluralize(len(log.lines), 'line')}{omitted}:"
            for line in log.lines:
                first, *more = self.redact(line.text).split("\n")
                yield f"  {when(line.at)}  {line.level:8}  {line.logger}  {first}"
                yield from (f"    {line}" for line in more)

    def _run(self) -> Iterator[str]:
        view = self.queue.run(self.options["id"])
        if self.options["json"]:
            yield from RUN_TASK_LIST.lines(view.tasks, self.options)
            return
        states = ", ".join(f"{number:,} {state.value}" for state, number in view.states.items())
        yield f"run {self.options['id']}: {view.state} ({states})"
        yield from RUN_TASK_LIST.lines(view.tasks, self.options)

    def _xcom(self) -> Iterator[str]:
        found = self.queue.xcom(self.options["id"]).items()
        for key, value in found.items():
            (shown,) = (value,) if self.options["unredacted"] else redact_value({key: value}).values()
            yield f"{key}  {self._json(shown)}"
        yield pluralize(len(found), "value")

    def _json(self, value: Any) -> str:
        return json.dumps(value if self.options["unredacted"] else redact_value(value), ensure_ascii=False)


def _describe_tasks(what: str, ids: tuple[str, ...], count: int, nodes: dict[str, Any]) -> Iterator[str]:
    if not count:
        return
    yield f"{what} {count:,}:"
    for task_id in ids[:DEPENDENTS_SHOWN]:
        node = nodes.get(task_id)
        state = "" if node is None or node.state is None else f"  {node.state.value:9}  {node.name or '-'}"
        yield f"  {task_id}{state}"
    if count > DEPENDENTS_SHOWN:
        yield f"  and {count - DEPENDENTS_SHOWN:,} more"


def _describe_priority(task: Task) -> str:
    """Return the priority of a task; empty for a task in the urgent or bulk lane, where priorities have no effect."""
    if task.lane != "normal":
        return ""
    return task.priority.name + (f" (was {task.promoted_from.name})" if task.promoted_from else "")


def _describe_limit(limit: TaskLimit) -> str:
    of_user = " (each user)" if limit.is_of_user else ""
    at_limit = f", {limit.at_limit}" if limit.at_limit != "wait" else ""
    return f"{limit.key}{of_user}: {limit_values(limit)}{at_limit}"


def _fields(task: Task) -> dict[str, Any]:
    return {
        "task": task.task_id,
        "state": task.state.value,
        "priority": task.priority.name,
        "lane": task.lane,
        "created": task.created_at,
        "due": task.execute_after,
        "started": task.started_at,
        "ended": task.ended_at,
        "user": task.user_id,
        "name": task.name,
        "run": task.run_id,
    }


def _removed_result(task: Task) -> str:
    if not task.result_bytes_removed:
        return ""
    return f"removed ({task.result_bytes_removed:,} bytes): its user's results exceed max_result_bytes"


TASK_LIST: Listing[Task] = Listing(
    "task",
    [
        Column("task", lambda task: task.task_id, lambda task: task.task_id),
        Column("state", lambda task: task.state.value, lambda task: task.state.value),
        Column(
            "priority",
            lambda task: class_name(task.lane, task.priority),
            lambda task: class_of(task.lane, task.priority),
        ),
        Column("created", lambda task: when(task.created_at), lambda task: task.created_at),
        Column("user", lambda task: task.user_id, lambda task: task.user_id),
        Column("name", lambda task: task.name or "-", lambda task: task.name),
    ],
    fields=_fields,
    limit=50,
    moment=lambda task: task.created_at,
    moment_name="that were created",
)
RUN_TASK_LIST: Listing[Task] = replace(TASK_LIST, limit=None)
"""The list of a run's tasks, without a default limit, because the run may wait for any of its tasks."""
