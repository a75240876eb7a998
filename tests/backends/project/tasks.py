"""Tasks of both kinds."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import django_fairque
from django_fairque import Discard, Retry, current_task
from django_fairque.backends.compat import TaskContext, task

ran: list[Any] = []
"""The tasks record here that they ran in this process, in order."""


@task
def add(a: int, b: int = 0) -> int:
    ran.append(a)
    return a + b


@task
async def add_async(a: int, b: int = 0) -> int:
    return a + b


@task
def echo(*args: Any, **kwargs: Any) -> list[Any]:
    return [list(args), kwargs]


@task
def other(n: int) -> int:
    return n


@task(takes_context=True)
def describe(context: TaskContext[..., Any], wanted: int = 1) -> dict[str, Any]:
    """Succeeds with attempt number ``wanted``."""
    result = context.task_result
    if context.attempt < wanted:
        raise LookupError(f"attempt {context.attempt}")
    return {
        "id": result.id,
        "attempt": context.attempt,
        "status": result.status.value,
        "errors": [error.exception_class_path for error in result.errors],
        "workers": len(result.worker_ids),
        "own_attempt": current_task().attempt,
        "priority": result.task.priority,
        "pid": os.getpid(),
    }


@task(takes_context=True)
async def describe_async(context: TaskContext[..., Any], wanted: int = 1) -> list[int]:
    if context.attempt < wanted:
        raise LookupError(f"attempt {context.attempt}")
    return [context.attempt, len(context.task_result.errors)]


@task
def linger() -> None:
    """Never ends by itself."""
    while True:
        time.sleep(0.005)


waiting = asyncio.Event()
"""Set when `wait_for_ever` has begun."""


@task
async def wait_for_ever() -> None:
    waiting.set()
    await asyncio.Event().wait()


@task(takes_context=True)
def ask_again(context: TaskContext[..., Any], wanted: int) -> int:
    if context.attempt < wanted:
        raise Retry(0)
    return context.attempt


class OwnError(Exception):
    """An error of the application."""


RAISE: dict[str, Callable[[], BaseException]] = {
    "ValueError": lambda: ValueError("no good: at all"),
    "OwnError": OwnError,
    "SystemExit": lambda: SystemExit(3),
    "Discard": lambda: Discard("not wanted"),
    "Retry": lambda: Retry(60),
}


@task
def fail(name: str) -> None:
    error = RAISE[name]()
    raise error


@task
async def fail_async(name: str) -> None:
    error = RAISE[name]()
    raise error


@task
def die(file: str) -> None:
    """Writes that it has begun, and ends its process."""
    with Path(file).open("a") as begun:
        begun.write("x")
    os._exit(1)


@task
def die_too(file: str) -> None:
    die.call(file)


@task
def unserializable() -> object:
    return threading.Lock()


@django_fairque.task(user="whose")
def ordinary(whose: str, n: int) -> str:
    return f"{whose} {n}"
