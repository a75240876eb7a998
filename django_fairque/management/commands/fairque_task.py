"""``manage.py fairque_task``: single tasks and runs of pipelines: look at one, see what it waits for, cancel it."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from django_fairque.engine.model.records import TaskState
from django_fairque.management.base import QueueCommand, positive
from django_fairque.monitoring.redaction import as_line, redacted, redacted_text
from django_fairque.monitoring.wait_explanations import reasons
from django_fairque.tasks import canceling

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.core.management.base import CommandParser

    from django_fairque.engine.model.task import Task
    from django_fairque.engine.queue.queue import FairQueue

DEPENDENTS_SHOWN = 20


class Command(QueueCommand):
    help = "List tasks, look at one (its history, what it waits for, who waits for it), cancel it; the same for a run."

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_action = self.add_actions(parser)
        listing = add_action("list", "tasks of one state, or of all")
        states = [state.value for state in TaskState]
        listing.add_argument("--state", type=str.lower, choices=states, help="only in this state")
        listing.add_argument("--user", metavar="ID", help="only of this user")
        listing.add_argument(
            "--limit", type=positive, default=50, help="show at most N (default: %(default)s)", metavar="N"
        )
        for name, text in (
            ("show", "a task: its record, why it waits, its history and dependencies"),
            ("cancel", "cancel a task, and what depends on it"),
            ("run", "a run of a pipeline: its state and its tasks"),
            ("cancel-run", "cancel what has not ended of a run"),
            ("xcom", "the values that the tasks of a run have passed on"),
        ):
            action = add_action(name, text)
            action.add_argument("id", help="its id")
            if name in ("show", "xcom"):
                self.add_unredacted(action)

    def run(self, queue: FairQueue, options: dict[str, Any]) -> None:
        action = options["action"]
        if action == "list":
            lines: Iterator[str] = _listed(queue, options)
        elif action == "cancel":
            lines = iter(["canceled" if canceling.cancel(queue, options["id"]) else "it had ended before"])
        elif action == "cancel-run":
            lines = iter([f"{canceling.cancel_run(queue, options['id']):,} tasks canceled"])
        elif action == "run":
            lines = _run(queue, options["id"])
        else:
            lines = {"show": _task, "xcom": _values}[action](queue, options["id"], redacts=not options["unredacted"])
        for line in lines:
            self.write_lines(line)


def _listed(queue: FairQueue, options: dict[str, Any]) -> Iterator[str]:
    cursor, shown = None, 0
    while shown < options["limit"]:
        page = queue.tasks(options["state"], options["user"], min(1000, options["limit"]), cursor)
        for task in page.items[: options["limit"] - shown]:
            yield _line(task)
            shown += 1
        cursor = page.cursor
        if cursor is None:
            break
    yield f"{shown:,} shown" + ("; there are more" if cursor is not None else "")


def _task(queue: FairQueue, task_id: str, *, redacts: bool) -> Iterator[str]:
    task = queue.get_task(task_id)
    payload = as_line(task) if redacts else task.payload_bytes.decode("utf-8", "replace")
    for name, value in (
        ("task", task.task_id),
        ("state", task.state.value),
        ("user", task.user_id),
        ("name", task.name or "-"),
        ("priority", task.priority.name + (f" (was {task.promoted_from.name})" if task.promoted_from else "")),
        ("created", _when(task.created_at)),
        ("due", task.execute_after and _when(task.execute_after)),
        ("SLA", task.sla_deadline and f"to start by {_when(task.sla_deadline)}"),
        ("started", task.started_at and f"{_when(task.started_at)} by {task.worker}"),
        ("ended", task.ended_at and _when(task.ended_at)),
        ("retries", f"{task.retry_count} of {task.max_retries}"),
        ("given back", f"{task.given_back} times after it had begun" if task.given_back else ""),
        ("run", task.run_id),
        ("trace", task.traceparent),
        ("payload", payload),
        ("result", "" if task.result is None else _json(task.result, redacts=redacts)),
    ):
        if value:
            yield f"{name:9} {value}"
    for reason in reasons(queue, task_id):
        yield f"why       {reason.text}"
    view = queue.dependencies(task_id)
    yield from _named("waits for", view.blocked, view.blocked_count, view.graph.nodes)
    yield from _named("waited for by", view.waiting, view.waiting_count, view.graph.nodes)
    for attempt in queue.history(task_id):
        error = redacted_text(attempt.error) if redacts else attempt.error
        yield f"- {_when(attempt.at)}  {attempt.kind}  {attempt.worker}  {error}".rstrip()


def _named(what: str, ids: tuple[str, ...], count: int, nodes: dict[str, Any]) -> Iterator[str]:
    if not count:
        return
    yield f"{what} {count:,}:"
    for task_id in ids[:DEPENDENTS_SHOWN]:
        node = nodes.get(task_id)
        state = "" if node is None or node.state is None else f"  {node.state.value:9}  {node.name or '-'}"
        yield f"  {task_id}{state}"
    if count > DEPENDENTS_SHOWN:
        yield f"  and {count - DEPENDENTS_SHOWN:,} more"


def _run(queue: FairQueue, run_id: str) -> Iterator[str]:
    view = queue.run(run_id)
    states = ", ".join(f"{number:,} {state.value}" for state, number in view.states.items())
    yield f"run {run_id}: {view.state} ({states})"
    for task in view.tasks:
        yield _line(task)


def _values(queue: FairQueue, run_id: str, *, redacts: bool) -> Iterator[str]:
    found = queue.xcom(run_id).items()
    for key, value in found.items():
        (shown,) = redacted({key: value}).values() if redacts else (value,)
        yield f"{key}  {_json(shown, redacts=redacts)}"
    yield f"{len(found):,} values"


def _json(value: Any, *, redacts: bool) -> str:
    return json.dumps(redacted(value) if redacts else value, ensure_ascii=False)


def _line(task: Task) -> str:
    head = f"{task.task_id}  {task.state.value:9}  {task.priority.name:9}  {_when(task.created_at)}"
    return f"{head}  {task.user_id}  {task.name or '-'}"


def _when(moment: float) -> str:
    return datetime.fromtimestamp(moment, timezone.utc).strftime("%Y-%m-%d %H:%M:%SZ")
