"""Converts tasks to rows of an outbox and back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from django_fairque.engine.model import payload as json_payload
from django_fairque.engine.model.errors import TaskSerializationError
from django_fairque.engine.model.task import Task
from django_fairque.engine.pushing import batching as together

if TYPE_CHECKING:
    from django_fairque.models import OutboxEntry
    from django_fairque.outbox.clock import DatabaseClock

ROWS_AT_ONCE = 500


def store(database: str, queue: str, tasks: Sequence[Task], clock: DatabaseClock) -> dict[str, str]:
    """Write the tasks into the outbox of a database in which a transaction is open. Return the row of each task, by
    task id.
    """
    from django_fairque.models import OutboxEntry

    parts = divide_tasks(tasks)
    rows = [
        OutboxEntry(
            queue=queue, user_id=part[0].user_id, name=part[0].name, task_id=part[0].task_id, tasks=encode(part, clock)
        )
        for part in parts
    ]
    OutboxEntry.objects.using(database).bulk_create(rows, batch_size=ROWS_AT_ONCE)
    return {task.task_id: part[0].task_id for part in parts for task in part}


def change(
    database: str, queue: str, rows: Iterable[str], tasks: Mapping[str, Task | None], clock: DatabaseClock
) -> dict[str, str]:
    """Replace or remove stored tasks in ``rows``, which were stored in the transaction that is still open.

    A task in ``tasks`` replaces the stored task with the same id; None removes the stored task. Returns the row of each
    remaining task, by task id.
    """
    from django_fairque.models import OutboxEntry

    found: dict[str, str] = {}
    for name in rows:
        row = OutboxEntry.objects.using(database).filter(queue=queue, task_id=name).order_by("-id").first()
        if row is not None:
            left = [tasks.get(task.task_id, task) for task in decode(row)]
            row.delete(using=database)
            found |= store(database, queue, [task for task in left if task is not None], clock)
    return found


def divide_tasks(tasks: Sequence[Task]) -> list[list[Task]]:
    """Divide tasks into the contents of rows: single tasks in separate rows, and each graph of tasks as a whole in one
    row.
    """
    found: list[list[Task]] = []
    for part in together.divide_tasks(tasks):
        some = [tasks[index] for index in part.indexes]
        found += [some] if part.is_graph and not part.is_joined else [[task] for task in some]
    return found


def is_graph(tasks: Sequence[Task]) -> bool:
    return any(task.depends_on or task.run_id for task in tasks)


def encode(tasks: Sequence[Task], clock: DatabaseClock) -> str:
    return json.dumps([_fields(task, clock) for task in tasks], ensure_ascii=False, separators=(",", ":"))


def decode(row: OutboxEntry, passed_since: Callable[[float], float] | None = None) -> list[Task]:
    """Return the row's tasks. Raises `TaskSerializationError` if the row is damaged.

    Args:
        passed_since: function that returns the seconds since a moment of the database's clock. Delays and expiries of
            the tasks are shortened by this time. By default the tasks are returned as they were written.
    """
    try:
        return [_task(fields, passed_since) for fields in json.loads(row.tasks)]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TaskSerializationError(f"outbox entry {row.pk} can't be decoded: {error}") from error


def _fields(task: Task, clock: DatabaseClock) -> dict[str, Any]:
    fields = task.model_dump(mode="json", exclude_defaults=True, exclude={"payload"})
    fields["created_at"] = task.created_at  # set the field even if its value is the current default
    written = {} if task.delay is None and task.expires is None else {"written": round(clock.now(), 6)}
    return {**fields, **written, "payload": task.payload_bytes.decode(), "chosen": task.has_chosen_id}


def _task(fields: dict[str, Any], passed_since: Callable[[float], float] | None) -> Task:
    raw = fields["payload"].encode()
    others = {name: value for name, value in fields.items() if name not in ("payload", "chosen", "written")}
    task = Task.model_validate({**others, "payload": json_payload.loads(raw)})
    task.set_payload_bytes(raw, task.task_id if fields["chosen"] else None)
    written = fields.get("written")
    return task if written is None or passed_since is None else task.copy_for_later_push(passed_since(written))
