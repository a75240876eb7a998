"""Every public function and method, called with values of every wrong kind: only the package's own errors come out.

A call is made once for each parameter and each wrong value, with sensible values for the other parameters. It may work, and
it may raise an error of the package's tree; a `TypeError` only for arguments that the signature does not have.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import pytest

from django_fairque import FairQueueError, Priority
from django_fairque.conf import WorkerConfig
from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.async_queue import AsyncFairQueue
from tests.engine.conftest import task as make_task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django_fairque.engine.queue.queue import FairQueue
    from tests.servers import Server

LARGEST_MESSAGE = 2_000


class Broken:
    """Its text can't be made."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")


def nested(depth: int = 20_000) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


WRONG: dict[str, Any] = {
    "None": None,
    "an empty list": [],
    "a list of None": [None],
    "an empty mapping": {},
    "a mapping of None": {None: None},
    "empty bytes": b"",
    "bytes": b"\xff",
    "an empty text": "",
    "a lone surrogate": "\ud800",
    "NUL": "\0",
    "a large text": "x" * 1_000_000,
    "not a number": float("nan"),
    "infinity": float("inf"),
    "a negative number": -1,
    "a fraction": 0.5,
    "a large number": 10**400,
    "true": True,
    "a nested list": nested(),
    "an object": object(),
    "an object without a text": Broken(),
    "a type": int,
    "a function": len,
    "a configuration": WorkerConfig(),
}

SKIPPED = {
    *(
        "with_retry_timeout",
        "cancel_retries_when",
        "deliver",
        "forget_delivered",
        "heartbeat",
        "shard_scheduler_for",
        "reconcile_worker",
    ),
    *("release_worker", "settle", "take_over"),
}
"""For the package's own workers, which give them what other calls returned."""


def sensible(queue: FairQueue) -> dict[str, Any]:
    """By parameter name, what is accepted."""
    made = queue.push(make_task("ann"))
    lease = queue.pop("w", users=["ann"])
    assert lease is not None
    return {
        "task": make_task("ann"),
        "tasks": [make_task("ann")],
        "task_id": made.task_id,
        "task_ids": [made.task_id],
        "lease": lease,
        "leases": [lease],
        "outcomes": [Outcome.release(lease)],
        "user_id": "ann",
        "user_ids": ["ann"],
        "users": ["ann"],
        "organization": "g",
        "organization_id": "g",
        "name": "s",
        "names": ["s"],
        "worker": "w",
        "worker_id": "w",
        "timeout": 0.01,
        "error": "it failed",
        "result": 1,
        "run_id": "r",
        "entry_id": f"{made.task_id}~1",
        "entry_ids": [f"{made.task_id}~1"],
        "key": "k",
        "value": 1,
        "rate": "100/m",
        "weight": 1,
        "priority": Priority.NORMAL,
        "payload": {},
        "calls": [((1,), {})],
        "minutes": 60,
        "per_span": 1,
        "command": "work",
        "size": 1,
        "limit": 1,
        "number": 1,
        "older_than": 60,
        "fields": made_fields(),
        "values": Task.create("ann", 3, 1).to_lua_args(),
        "text": "x",
        "info": {},
        "every": 60,
    }


def made_fields() -> dict[str, Any]:
    return {"id": "x", **Task.create("ann", 3, 1).to_redis_dict()}


def public_methods(owner: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name in sorted(dir(owner)):
        if (
            name.startswith(("_", "model_"))
            or name in SKIPPED
            or isinstance(inspect.getattr_static(type(owner), name, None), property)
        ):
            continue
        found = getattr(owner, name)
        if callable(found) and not isinstance(found, type) and _is_ours(found):
            yield name, found


def _is_ours(function: Any) -> bool:
    return str(getattr(inspect.unwrap(function), "__module__", "")).startswith("django_fairque")


def calls(
    function: Callable[..., Any], values: dict[str, Any]
) -> Iterator[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    """A description, positional and named arguments."""
    parameters = [each for each in inspect.signature(function).parameters.values() if each.name != "self"]
    fixed = [each for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    needed = {each.name: values[each.name] for each in fixed if each.default is each.empty if each.name in values}
    for parameter in fixed:
        for what, wrong in WRONG.items():
            given = {**needed, parameter.name: wrong}
            args = [given.pop(each.name) for each in fixed if each.kind is each.POSITIONAL_ONLY and each.name in given]
            yield f"{parameter.name}: {what}", tuple(args), given


def problem(error: BaseException) -> str:
    """What is wrong with an error that came out; empty if nothing is."""
    if isinstance(error, FairQueueError):
        return "" if len(str(error)) <= LARGEST_MESSAGE else f"a message of {len(str(error)):,} characters"
    is_signature = isinstance(error, TypeError) and error.__traceback__ is not None and _depth(error) <= 1
    return "" if is_signature else f"{type(error).__name__}: {str(error)[:200]}"


def _depth(error: BaseException) -> int:
    """The number of frames of the package that the error went through."""
    count, trace = 0, error.__traceback__
    while trace is not None:
        count += "django_fairque" in trace.tb_frame.f_code.co_filename
        trace = trace.tb_next
    return count


def check(name: str, function: Callable[..., Any], values: dict[str, Any]) -> list[str]:
    return [
        f"{name}({what}): {words}"
        for what, args, given in calls(function, values)
        if (words := call(function, args, given))
    ]


def call(function: Callable[..., Any], args: tuple[Any, ...], given: dict[str, Any]) -> str:
    """What is wrong with the error of a call."""
    try:
        result = function(*args, **given)
        if inspect.isgenerator(result):
            list(result)
    except Exception as error:  # noqa: BLE001 - the kinds of errors are what is tested
        return problem(error)
    return ""


async def acheck(name: str, function: Callable[..., Any], values: dict[str, Any]) -> list[str]:
    found = []
    for what, args, given in calls(function, values):
        if words := await acall(function, args, given):
            found.append(f"{name}({what}): {words}")
    return found


async def acall(function: Callable[..., Any], args: tuple[Any, ...], given: dict[str, Any]) -> str:
    try:
        result = function(*args, **given)
        if inspect.isawaitable(result):
            await result
    except Exception as error:  # noqa: BLE001 - the kinds of errors are what is tested
        return problem(error)
    return ""


def parts(queue: Any) -> dict[str, Any]:
    return {
        "queue": queue,
        "user": queue.user("ann"),
        "organization": queue.organization("g"),
        "dlq": queue.dlq,
        "schedules": queue.schedules,
        "dependencies": queue.dependencies,
        "xcom": queue.xcom,
    }


PARTS = ("queue", "user", "organization", "dlq", "schedules", "dependencies", "xcom")


@pytest.mark.parametrize("part", PARTS)
def test_methods_of_a_queue(queue: FairQueue, part: str) -> None:
    values, found = sensible(queue), []
    for name, method in public_methods(parts(queue)[part]):
        found += check(f"{part}.{name}", method, values)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("part", PARTS)
async def test_methods_of_a_queue_for_coroutines(queue: FairQueue, server: Server, part: str) -> None:
    values, found = sensible(queue), []
    client = server.async_client()
    try:
        for name, method in public_methods(parts(AsyncFairQueue(client, queue.name))[part]):
            found += await acheck(f"{part}.{name}", method, values)
    finally:
        await client.aclose()
    assert not found, "\n".join(found)
