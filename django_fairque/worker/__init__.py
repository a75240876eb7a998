"""Workers fetch tasks from queues, run them, and report the outcomes. `Worker` and `AsyncWorker` run in the calling process;
`manage.py fairque_worker` starts a supervisor with several worker processes."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django_fairque.worker.async_worker import AsyncWorker

    from .worker import Worker

__all__ = ["AsyncWorker", "Worker"]

_HOMES = {"AsyncWorker": "async_worker", "Worker": "worker"}


if not TYPE_CHECKING:  # or every name would be there for a type checker

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
