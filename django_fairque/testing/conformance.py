"""Runs Django's own tests for backends of `django.tasks` with the backend of this package: ``python -m
django_fairque.testing.conformance DIR``.

DIR is an unpacked source distribution of the installed Django version, because Django's wheel contains no tests.
`cases` returns the classes for another runner. All tests of ``tasks.test_tasks.TaskTestCase`` and
``tasks.test_dummy_backend.DummyBackendTestCase`` run, except those in `LEFT_OUT`.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import inspect
import secrets
import sys
import unittest
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.test import SimpleTestCase, override_settings

from django_fairque.backends import FairqueBackend
from django_fairque.conf import aclose_queues, get_config, get_queue

if TYPE_CHECKING:
    from django_fairque.backends.compat import AnyResult

WAITING = ("queued", "scheduled")


class RecordedBackend(FairqueBackend):
    """The backend with Django's test interface, on a separate server, which `clear` empties."""

    @property
    def results(self) -> list[AnyResult]:
        """The results of the tasks that have been enqueued and have not run."""
        queues = [get_queue(name) for name in get_config().queues]
        return [
            self.get_result(task.task_id) for queue in queues for state in WAITING for task in queue.tasks(state).items
        ]

    def clear(self) -> None:
        client: Any = get_queue().client
        client.flushdb()


BACKEND = "django_fairque.testing.conformance.RecordedBackend"

QUEUES = ["default", "queue_1"]

LEFT_OUT = {
    "TaskTestCase": {
        "test_using_correct_backend": "asserts that the default backend is Django's DummyBackend",
        "test_get_backend": "asserts that a task's backend is Django's DummyBackend",
    },
    "DummyBackendTestCase": {
        "test_using_correct_backend": "asserts that the default backend is Django's DummyBackend",
        "test_refresh_result": "changes the result object that the DummyBackend keeps in memory; here the queue keeps it",
        "test_refresh_result_async": "as test_refresh_result",
    },
}
"""The reason why a test can't pass with another backend than Django's own, by test case and test."""


def find_tests(source: Path) -> Path:
    """Return the folder that must be on the Python path. ``source`` is a source distribution, this folder, or the
    folder above it.
    """
    for folder in (source, source / "tests", *sorted(source.glob("[Dd]jango-*/tests"))):
        if (folder / "tasks" / "test_tasks.py").is_file():
            return folder
    raise FileNotFoundError(
        f"{source} has no tests/tasks/test_tasks.py: expected an unpacked source distribution of Django 6.0 or newer "
        "(its wheel has no tests)"
    )


def build_task_settings(alias_options: dict[str, Any], backend: str) -> dict[str, Any]:
    """Return ``TASKS`` with the aliases that Django's tests expect."""
    return {
        "default": {"BACKEND": backend, **alias_options},
        "immediate": {"BACKEND": "django.tasks.backends.immediate.ImmediateBackend", "QUEUES": []},
        "missing": {"BACKEND": "does.not.exist"},
    }


def cases(source: Path, backend: str = BACKEND) -> list[type[SimpleTestCase]]:
    """Return subclasses of Django's test cases that run on ``backend``, a dotted path.

    The backend must have the method ``clear()``, and the attribute ``results`` with the tasks that were enqueued since
    the last call of ``clear()``. Django must be set up, and the queues ``default`` and ``queue_1`` must be declared.
    """
    tests = str(find_tests(source))
    if tests not in sys.path:
        sys.path.insert(0, tests)
    return [
        _on_backend("tasks.test_tasks", "TaskTestCase", build_task_settings({"QUEUES": QUEUES}, backend)),
        _on_backend("tasks.test_dummy_backend", "DummyBackendTestCase", build_task_settings({"QUEUES": []}, backend)),
    ]


def _on_backend(module: str, name: str, tasks: dict[str, Any]) -> type[SimpleTestCase]:
    base = getattr(importlib.import_module(module), name)
    hidden = dict.fromkeys(LEFT_OUT[name])
    missing = [test for test in hidden if not hasattr(base, test)]
    if missing:
        raise LookupError(f"{module}.{name} has no {', '.join(missing)} any more: bring LEFT_OUT up to date")
    closing = {test: _wrap_test(method) for test, method in vars(base).items() if inspect.iscoroutinefunction(method)}
    case: type[SimpleTestCase] = type(name, (base,), {"__module__": __name__, **closing, **hidden})
    return override_settings(TASKS=tasks, USE_TZ=True)(case)


def _wrap_test(test: Callable[[Any], Awaitable[None]]) -> Callable[[Any], Awaitable[None]]:
    """Close the queues after a test that is a coroutine, because each such test has a separate event loop, and so
    separate connections.
    """

    @functools.wraps(test)
    async def run_and_close(self: Any) -> None:
        try:
            await test(self)
        finally:
            await aclose_queues()

    return run_and_close


def run(source: Path, backend: str = BACKEND, *, verbosity: int = 1) -> unittest.TestResult:
    """Run all test cases on a separate server."""
    from .servers import private_server

    with private_server(QUEUES={name: {} for name in QUEUES}):
        loader = unittest.TestLoader()
        suite = unittest.TestSuite(loader.loadTestsFromTestCase(case) for case in cases(source, backend))
        return unittest.TextTestRunner(verbosity=verbosity).run(suite)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path, metavar="DIR", help="an unpacked source distribution of Django")
    parser.add_argument("--backend", default=BACKEND, help="dotted path of the backend to test (default: %(default)s)")
    parser.add_argument("--verbosity", type=int, default=1, help="2 names each test")
    options = parser.parse_args(arguments)
    import django

    if not settings.configured:
        settings.configure(INSTALLED_APPS=["django_fairque"], USE_TZ=True, SECRET_KEY=secrets.token_hex())
    django.setup()
    result = run(options.source, options.backend, verbosity=options.verbosity)
    left_out = [f"{case}.{test}: {why}" for case, tests in LEFT_OUT.items() for test, why in tests.items()]
    sys.stdout.write("\n".join([f"Django {django.__version__}: ran {result.testsRun} tests; left out:", *left_out, ""]))
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
