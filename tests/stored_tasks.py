"""Tasks as a server keeps them, for tests that look at them or damage them without the queue."""

from __future__ import annotations

from typing import Any

from django_fairque.engine.model.head import head_size, split_head, whole_record

PREFIX = "fq:{default:0}:"


def stored_payload(redis: Any, task_id: str) -> bytes:
    """The payload with its signature, without a head."""
    return split_head(redis.get(f"{PREFIX}payload:{task_id}"))[1]


def replace_payload(redis: Any, task_id: str, payload: bytes) -> None:
    """Another payload, with its signature if it has one, behind the same head."""
    key = f"{PREFIX}payload:{task_id}"
    text = redis.get(key)
    redis.set(key, text[: head_size(text)] + payload)


def stored_record(redis: Any, task_id: str) -> dict[bytes, bytes]:
    """The fields of the record and of the head; empty if there is no such task."""
    record, _ = whole_record(redis.hgetall(f"{PREFIX}task:{task_id}"), redis.get(f"{PREFIX}payload:{task_id}"))
    return dict(record)


def remove_task(redis: Any, task_id: str) -> None:
    """Delete a task's record and payload; other keys still name the task."""
    redis.delete(f"{PREFIX}task:{task_id}", f"{PREFIX}payload:{task_id}")
