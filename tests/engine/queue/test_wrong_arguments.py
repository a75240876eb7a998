"""Every public function and method, called with values of every wrong kind: only the package's own errors come out.

A call is made once for each parameter and each wrong value, with sensible values for the other parameters. It may work, and
it may raise an error of the package's tree; a `TypeError` only for arguments that the signature does not have.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_fairque import FairQueueError, Priority
from django_fairque.conf import WorkerConfig
from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import pop
from tests.engine.conftest import task as make_task

LARGEST_MESSAGE = 1_500


class Broken:
    """Its text can't be made."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")


def nested(depth: int = 20_000) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


LARGE = "x" * 1_000_000
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
    "a large text": LARGE,
    "large bytes": LARGE.encode(),
    "a list of a large text": [LARGE],
    "not a number": float("nan"),
    "infinity": float("inf"),
    "a negative number": -1,
    "a fraction": 0.5,
    "a large number": 10**400,
    "a number that has no decimal text": 10**5000,
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
        "create_shard_scheduler",
    ),
    *("reconcile_worker", "release_worker", "settle", "take_over"),
}
"""For the package's own workers, which give them what other calls returned."""


def sensible(queue: FairQueue) -> dict[str, Any]:
    """By parameter name, what is accepted."""
    made = queue.push(make_task("ann"))
    lease = pop(queue, None, users=["ann"])
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
    parameters = [
        parameter for parameter in inspect.signature(function).parameters.values() if parameter.name != "self"
    ]
    fixed = [
        parameter for parameter in parameters if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    needed = {
        parameter.name: values[parameter.name]
        for parameter in fixed
        if parameter.default is parameter.empty
        if parameter.name in values
    }
    for parameter in fixed:
        for what, wrong in WRONG.items():
            given = {**needed, parameter.name: wrong}
            args = [
                given.pop(parameter.name)
                for parameter in fixed
                if parameter.kind is parameter.POSITIONAL_ONLY and parameter.name in given
            ]
            yield f"{parameter.name}: {what}", tuple(args), given


def problem(error: BaseException) -> str:
    """Return a description of the problem with an error; empty if there is none."""
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


def call(function: Callable[..., Any], args: tuple[Any, ...], given: dict[str, Any]) -> str:
    """Return the problem with the error of a call, if any."""
    try:
        result = function(*args, **given)
        if inspect.isgenerator(result):
            list(result)
    except Exception as error:  # noqa: BLE001 - the kinds of errors are what is tested
        return problem(error)
    return ""


PARTS: dict[str, Callable[[FairQueue], Any]] = {
    "queue": lambda queue: queue,
    "user": lambda queue: queue.user("ann"),
    "organization": lambda queue: queue.organization("g"),
    "dlq": lambda queue: queue.dlq,
    "schedules": lambda queue: queue.schedules,
    "dependencies": lambda queue: queue.dependencies,
    "xcom": lambda queue: queue.xcom,
}


@pytest.mark.parametrize("part", PARTS)
def test_methods_of_a_queue_raise_only_errors_of_the_package(queue: FairQueue, part: str) -> None:
    values = sensible(queue)
    found = [
        f"{part}.{name}({label}): {words}"
        for name, method in public_methods(PARTS[part](queue))
        for label, args, given in calls(method, values)
        if (words := call(method, args, given))
    ]
    assert not found, "\n".join(found)
