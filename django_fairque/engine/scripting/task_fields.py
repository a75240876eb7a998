"""Reads of single fields of tasks, from their records and heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from django_fairque.engine.model.head import MAX_HEAD_BYTES, split_head
from django_fairque.engine.scripting.operations import Operation, read_sound

if TYPE_CHECKING:
    from django_fairque.engine.scripting.commands import Keys


FEW_TASKS = 10
"""The heads of at most this many tasks are read with their records, because a second round trip would take longer."""


def read_fields(
    tasks: Sequence[tuple[Keys, str]], fields: Sequence[str], others: Sequence[tuple[Any, ...]] = ()
) -> Operation[tuple[list[list[bytes | None]], list[Any]]]:
    """Read these fields of each task, and the replies to other commands in the same round trip.

    For many tasks, a second round trip reads the heads of the tasks whose records have no user. A key of an unexpected
    type counts as absent.
    """
    reads = [("HMGET", keys.task(task_id), *fields, "user") for keys, task_id in tasks]
    heads = [("GETRANGE", keys.payload(task_id), 0, MAX_HEAD_BYTES - 1) for keys, task_id in tasks]
    at_once = heads if len(tasks) <= FEW_TASKS else []
    replies = yield from read_sound([*reads, *at_once, *others])
    records, texts = replies[: len(tasks)], replies[len(tasks) : len(tasks) + len(at_once)]
    headed = [index for index, values in enumerate(records) if values.pop() is None]
    found = (
        [texts[index] for index in headed] if at_once else (yield from read_sound([heads[index] for index in headed]))
    )
    names = [field.encode() for field in fields]
    for index, text in zip(headed, found, strict=True):
        head, _ = split_head(text)
        records[index] = [
            head.get(name) if value is None else value for name, value in zip(names, records[index], strict=True)
        ]
    return records, replies[len(tasks) + len(at_once) :]


def read_task_fields(keys: Keys, task_ids: Sequence[str], *fields: str) -> Operation[list[list[bytes | None]]]:
    """Read these fields of tasks on one shard, as `read_fields` does."""
    records, _ = yield from read_fields([(keys, task_id) for task_id in task_ids], fields)
    return records
