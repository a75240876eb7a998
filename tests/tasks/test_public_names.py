"""What `import django_fairque` gives, and what it costs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import django_fairque
from django_fairque.engine import errors as engine_errors
from django_fairque.tasks import errors as task_errors

ROOT = Path(__file__).parent.parent.parent


def test_every_name_is_there_and_nothing_else_is() -> None:
    assert all(hasattr(django_fairque, name) for name in django_fairque.__all__)
    assert dir(django_fairque) == django_fairque.__all__
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
    assert {kind.__name__ for kind in kinds} - set(django_fairque.__all__) == set()


def modules_after(program: str) -> set[str]:
    program += "; import sys; print(*{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_the_package_imports_nothing_of_weight() -> None:
    assert modules_after("import django_fairque") & {"django", "pydantic", "redis", "yaml", "asyncio"} == set()


def test_declaring_a_task_imports_nothing_but_django() -> None:
    program = "import django_fairque; exec('def work(): ...'); django_fairque.task(work)"
    assert modules_after(program) & {"pydantic", "redis", "yaml"} == set()


def test_the_version_is_the_packages() -> None:
    found = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert found is not None
    assert found[1] == django_fairque.__version__
