"""What `import django_fairque` gives, and what it costs."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest

import django_fairque
from django_fairque import FairQueueError, documentation
from django_fairque.engine.model import errors as engine_errors
from django_fairque.engine.model.options import InvalidOptionsError
from django_fairque.engine.model.records import PushResult
from django_fairque.tasks import errors as task_errors

ROOT = Path(__file__).parent.parent.parent


def test_the_package_has_exactly_its_public_names() -> None:
    assert all(hasattr(django_fairque, name) for name in dir(django_fairque))
    assert dir(django_fairque) == django_fairque.__all__  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="no attribute 'tusk'"):
        _ = django_fairque.tusk  # type: ignore[attr-defined]


def test_every_error_can_be_caught_by_its_public_name() -> None:
    kinds = [
        kind
        for module in (engine_errors, task_errors)
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, engine_errors.FairQueueError)
    ]
    assert len(kinds) > 20
    assert {kind.__name__ for kind in kinds} - set(dir(django_fairque)) == set()


PUBLIC = {name: getattr(django_fairque, name) for name in dir(django_fairque)}
ERRORS = [kind for kind in PUBLIC.values() if isinstance(kind, type) and issubclass(kind, Exception)]
TOLD: dict[type[Exception], tuple[tuple[Any, ...], dict[str, Any]]] = {
    django_fairque.BacklogFullError: (("why",), {"refused": ["a"], "results": [PushResult("a", "backlog_full")]}),
    django_fairque.Discard: (("why",), {}),
    django_fairque.DependencyCycleError: (("why", ["a", "b", "a"]), {}),
    django_fairque.LuaScriptError: (("push", "why"), {}),
    django_fairque.NotPermittedError: (("why", "fcall"), {}),
    django_fairque.NotReplicatedError: (("why", 1, 2), {}),
    django_fairque.PushRefusedError: (("why",), {"refused": ["a"], "results": [PushResult("a", "backlog_full")]}),
    django_fairque.Retry: ((1.5, "why"), {}),
    django_fairque.ShardsAwayError: (("why", [1, 2], ["a"]), {}),
    django_fairque.TaskFailedError: (("a", "why"), {}),
    django_fairque.TaskIdConflictError: (("why",), {"refused": ["a"], "results": [PushResult("a", "id_conflict")]}),
}


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_every_error_crosses_processes(kind: type[Exception]) -> None:
    args, options = TOLD.get(kind, (("why",), {}))
    error = kind(*args, **options)
    pickled = [pickle.dumps(error, protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
    for again in (*map(pickle.loads, pickled), copy.copy(error)):
        assert type(again) is kind
        assert (str(again), repr(again), vars(again)) == (str(error), repr(error), vars(error))


@pytest.mark.skipif(sys.version_info < (3, 11), reason="notes are new in Python 3.11")
def test_a_traceback_names_the_command_that_explains_the_error() -> None:
    mistakes: list[FairQueueError] = [InvalidOptionsError([])]
    kinds = [kind for kind in ERRORS if issubclass(kind, FairQueueError)]
    mistakes += [kind(*TOLD.get(kind, (("why",), {}))[0]) for kind in kinds]
    for error in mistakes:
        name = next(kind.__name__ for kind in type(error).__mro__ if kind in kinds)
        assert traceback.format_exception_only(error)[-1] == f"Run manage.py fairque_docs {name} for help\n"
        assert {entry.title for entry in documentation.find(name)} == {name}
    error.add_note("in order 42")  # type: ignore[attr-defined, unused-ignore]
    assert traceback.format_exception_only(error)[-1] == "in order 42\n"


def modules_after(program: str) -> set[str]:
    program += "; import sys; print(*{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_the_package_imports_nothing_of_weight() -> None:
    assert modules_after("import django_fairque") & {"django", "pydantic", "redis", "yaml", "asyncio"} == set()


def test_declaring_a_task_imports_nothing_but_django() -> None:
    program = "import django_fairque; exec('def work(): ...'); django_fairque.task(work)"
    assert modules_after(program) & {"pydantic", "redis", "yaml"} == set()
