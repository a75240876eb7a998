"""For the tests of projects that use django_fairque: no worker and no server is needed, unless a test wants a real one.

Each name is imported when it is first used: the pytest plugin is loaded by every test run where the package is installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .assertions import FairqueTestMixin, assert_enqueued, assert_fair
    from .capture import Capture, capture_tasks, eager
    from .captured import Captured
    from .servers import private_server, run_tasks

__all__ = [
    "Capture",
    "Captured",
    "FairqueTestMixin",
    "assert_enqueued",
    "assert_fair",
    "capture_tasks",
    "eager",
    "private_server",
    "run_tasks",
]

_HOMES = {
    "Capture": "capture",
    "Captured": "captured",
    "FairqueTestMixin": "assertions",
    "assert_enqueued": "assertions",
    "assert_fair": "assertions",
    "capture_tasks": "capture",
    "eager": "capture",
    "private_server": "servers",
    "run_tasks": "servers",
}


if not TYPE_CHECKING:  # or every name would be there for a type checker

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
