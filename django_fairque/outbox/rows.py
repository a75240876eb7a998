"""From tasks to rows and back."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from django_fairque.engine import payload as json_payload
from django_fairque.engine.errors import TaskSerializationError
from django_fairque.engine.models import Task
from django_fairque.engine.pushing import in_graphs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_fairque.models import OutboxEntry

ROWS_AT_ONCE = 500


def store(database: str, queue: str, tasks: Sequence[Task]) -> None:
    """Write the tasks into the outbox of a database, where a transaction must be open."""
    from django_fairque.models import OutboxEntry

    rows = [
        OutboxEntry(
            queue=queue, user_id=part[0].user_id, name=part[0].name, task_id=part[0].task_id, tasks=encoded(part)
        )
        for part in parts_of(tasks)
    ]
    OutboxEntry.objects.using(database).bulk_create(rows, batch_size=ROWS_AT_ONCE)


def withdraw(database: str, queue: str, task_id: str) -> bool:
    """Take back a single task that was stored in the transaction which is open; whether it was there."""
    from django_fairque.models import OutboxEntry

    count: int
    count, _ = OutboxEntry.objects.using(database).filter(queue=queue, task_id=task_id).delete()
    return count > 0


def parts_of(tasks: Sequence[Task]) -> list[list[Task]]:
    """What belongs into one row: each task, but graphs as a whole."""
    if not is_graph(tasks):
        return [[task] for task in tasks]
    return [[tasks[index] for index in indexes] for indexes in in_graphs(tasks).values()]


def is_graph(tasks: Sequence[Task]) -> bool:
    return any(task.depends_on or task.run_id for task in tasks)


def encoded(tasks: Sequence[Task]) -> str:
    return json.dumps([_fields(task) for task in tasks], ensure_ascii=False, separators=(",", ":"))


def decoded(row: OutboxEntry) -> list[Task]:
    """The row's tasks; `TaskSerializationError` if somebody has damaged it."""
    try:
        return [_task(fields) for fields in json.loads(row.tasks)]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TaskSerializationError(f"outbox entry {row.pk} can't be decoded: {error}") from error


def _fields(task: Task) -> dict[str, Any]:
    fields = task.model_dump(mode="json", exclude_defaults=True, exclude={"payload"})
    return {**fields, "payload": task.payload_bytes.decode(), "chosen": task.has_chosen_id}


def _task(fields: dict[str, Any]) -> Task:
    raw = fields["payload"].encode()
    others = {name: value for name, value in fields.items() if name not in ("payload", "chosen")}
    task = Task.model_validate({**others, "payload": json_payload.loads(raw)})
    return task.carrying(raw, task.task_id if fields["chosen"] else None)
