"""Reads of single fields of tasks, from their records and heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from django_fairque.engine.model.head import MAX_HEAD_BYTES, split_head
from django_fairque.engine.scripting.operations import Operation, read_sound

if TYPE_CHECKING:
    from django_fairque.engine.scripting.commands import Keys


def read_fields(
    tasks: Sequence[tuple[Keys, str]], fields: Sequence[str], others: Sequence[tuple[Any, ...]] = ()
) -> Operation[tuple[list[list[bytes | None]], list[Any]]]:
    """The values of these fields for each task, and the replies to other commands of the same round trip.

    A second round trip reads the heads of those tasks whose records have no user. A key of another type than ours counts as
    absent.
    """
    reads = [("HMGET", keys.task(task_id), *fields, "user") for keys, task_id in tasks]
    replies = yield from read_sound([*reads, *others])
    records, rest = replies[: len(tasks)], replies[len(tasks) :]
    headed = [index for index, values in enumerate(records) if values.pop() is None]
    heads = yield from read_sound(
        [("GETRANGE", tasks[index][0].payload(tasks[index][1]), 0, MAX_HEAD_BYTES - 1) for index in headed]
    )
    names = [field.encode() for field in fields]
    for index, text in zip(headed, heads, strict=True):
        head, _ = split_head(text)
        records[index] = [
            head.get(name) if value is None else value for name, value in zip(names, records[index], strict=True)
        ]
    return records, rest


def read_fields_of(keys: Keys, task_ids: Sequence[str], *fields: str) -> Operation[list[list[bytes | None]]]:
    """`read_fields` of tasks of one shard, alone."""
    records, _ = yield from read_fields([(keys, task_id) for task_id in task_ids], fields)
    return records
