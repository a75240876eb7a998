"""Handing tasks over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import BacklogFullError, TaskValidationError
from .ids import new_nonce
from .records import PushResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .commands import Commands
    from .models import Task
    from .steps import Steps


def push(commands: Commands, task: Task, now: float | None = None) -> Steps[PushResult]:
    results = yield from _push_slice(commands, [task], now)
    if results[0].status == "backlog_full":
        raise _backlog_full(commands, results)
    return results[0]


def push_batch(commands: Commands, tasks: Iterable[Task], now: float | None = None) -> Steps[list[PushResult]]:
    waiting = list(tasks)
    results: list[PushResult] = []
    for first in range(0, len(waiting), commands.config.pipeline_batch_size):
        results += yield from _push_slice(commands, waiting[first : first + commands.config.pipeline_batch_size], now)
    if any(result.status == "backlog_full" for result in results):
        raise _backlog_full(commands, results)
    return results


def _push_slice(commands: Commands, tasks: Sequence[Task], now: float | None) -> Steps[list[PushResult]]:
    limit = commands.config.max_payload_bytes
    args: list[Any] = []
    kept = 0
    for task in tasks:
        if len(task.payload_bytes) > limit:
            raise TaskValidationError(
                f"the payload of task {task.task_id!r} takes {len(task.payload_bytes):,} bytes, "
                f"the limit (max_payload_bytes) is {limit:,}; store the data and pass a reference to it"
            )
        if task.max_retries > commands.config.max_retry_attempts:
            raise TaskValidationError(
                f"max_retries of task {task.task_id!r} is {task.max_retries}, "
                f"the limit (max_retry_attempts) is {commands.config.max_retry_attempts}"
            )
        if task.has_chosen_id or task.unique_key:
            kept = 1
        args += task.to_lua_args()
    if not tasks:
        return []
    reply = yield commands.call("push", [kept, len(tasks), *args], now, reply=new_nonce())
    others = {int(reply[i]): reply[i + 1].decode() for i in range(2, len(reply), 2)}
    words = {0x31: "accepted", 0x32: "duplicate", 0x33: "backlog_full"}
    return [
        PushResult(others.get(index, task.task_id), words[code])
        for index, (task, code) in enumerate(zip(tasks, reply[1], strict=True), 1)
    ]


def _backlog_full(commands: Commands, results: Sequence[PushResult]) -> BacklogFullError:
    refused = [result.task_id for result in results if result.status == "backlog_full"]
    return BacklogFullError(
        f"{len(refused)} of {len(results)} tasks were refused because their user's backlog is full "
        f"(queue {commands.name!r}); try again later, or raise max_backlog",
        refused=refused,
        results=results,
    )
