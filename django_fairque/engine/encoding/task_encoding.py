"""A task in the fields of its hash: what `Task.to_redis_dict` writes and `Task.from_redis_dict` reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django_fairque.engine.encoding import payload as json_payload
from django_fairque.engine.encoding.packing import pack, unpack
from django_fairque.engine.model import trace_context as traces
from django_fairque.engine.model.durations import LAST, MAX_DURATION, seconds, to_us
from django_fairque.engine.model.errors import TaskSerializationError
from django_fairque.engine.model.priority import Priority
from django_fairque.engine.model.records import TaskState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from django_fairque.engine.model.task import Task

IN_US = {
    "created_at": "created",
    "execute_after": "due",
    "expires_at": "expires",
    "timeout": "timeout",
    "sla": "sla",
    "sla_deadline": "deadline",
    "ready_at": "ready",
    "started_at": "started",
    "ended_at": "ended",
    "unique_for": "unique_for",
    "debounce": "debounce",
    "debounce_max_wait": "debounce_max_wait",
}
"""Moments and lengths of time, each with its field."""
TEXTS = {"name": "name", "worker": "worker", "run_id": "run", "unique_key": "unique"}
CHOSEN = "chosen"


def written(task: Task) -> dict[str, str | bytes]:
    """The fields of its hash, its id and payload, and what the server keeps elsewhere: unique key, windows, chosen id."""
    fields: dict[str, str | bytes] = {
        "id": task.task_id,
        "user": task.user_id,
        "priority": str(int(task.priority)),
        "state": task.state.value,
        "retries": str(task.retry_count),
        "max_retries": str(task.max_retries),
        "payload": task.payload_bytes,
    }
    values = task.__dict__
    fields.update({field: str(to_us(values[name])) for name, field in IN_US.items() if values[name] is not None})
    fields.update({field: values[name] for name, field in TEXTS.items() if values[name]})
    fields.update(_rare(task))
    return fields


def _rare(task: Task) -> dict[str, str | bytes]:
    """What most tasks don't have."""
    fields: dict[str, str | bytes] = {}
    if task.result is not None:
        fields["result"] = json_payload.dumps(task.result, what="result")
    if task.delivery:
        fields["deliveries"] = str(task.delivery)
    if task.given_back:
        fields["returned"] = str(task.given_back)
    if task.depends_on:
        fields["parents"] = pack(task.depends_on)
    if task.on_dependency_failure != "wait":
        fields["policy"] = task.on_dependency_failure
    if task.promoted_from is not None:
        fields["promoted"] = str(int(task.promoted_from))
    if task.traceparent:
        fields["trace"] = task.trace.stored()
    if task.has_chosen_id:
        fields[CHOSEN] = "1"
    return fields


def read(data: Mapping[str, bytes]) -> dict[str, Any]:
    """A task's values but for its payload; `TaskSerializationError` when something is missing or damaged."""
    trace = traces.restored(data["trace"]) if data.get("trace") else traces.NONE
    try:
        return {
            **{name: _in_seconds(data.get(field)) for name, field in IN_US.items()},
            **{name: data.get(field, b"").decode() for name, field in TEXTS.items()},
            "task_id": data["id"].decode(),
            "user_id": data["user"].decode(),
            "priority": Priority(int(data.get("priority", b"3"))),
            "state": TaskState(data.get("state", b"queued").decode()),
            "retry_count": int(data.get("retries") or 0),
            "max_retries": int(data.get("max_retries") or 0),
            "created_at": _in_seconds(data.get("created")) or 0.0,
            "result": json_payload.loads(data["result"], what="result") if data.get("result") else None,
            "delivery": int(data.get("deliveries") or 0),
            "given_back": int(data.get("returned") or 0),
            "depends_on": tuple(part.decode() for part in unpack(data.get("parents", b""))),
            "on_dependency_failure": data.get("policy", b"wait").decode(),
            "promoted_from": Priority(int(data["promoted"])) if data.get("promoted") else None,
            "traceparent": trace.parent,
            "tracestate": trace.state,
        }
    except (KeyError, ValueError) as error:
        raise TaskSerializationError(f"the record of a task is damaged: {error!r}") from error


def _in_seconds(us: bytes | None) -> float | None:
    found = seconds(us)
    if found is not None and not 0 <= found <= LAST + MAX_DURATION:
        raise ValueError(f"{us!r:.40} is no moment")
    return found
