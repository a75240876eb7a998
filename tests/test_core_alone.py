"""The core runs without any extension: it imports none, also not in a function."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXTENSIONS = (
    "admin",
    "backends",
    "checks",
    "integrations",
    "locale",
    "monitoring",
    "static",
    "templates",
    "templatetags",
    "web",
)
"""The folders that a project could remove. Commands stay, because one of them starts a worker; tests use `testing`."""
CORE_TESTS = (
    *("tests/engine/queue/test_errors.py", "tests/tasks/test_enqueue.py", "tests/tasks/test_retry_limits.py"),
    *("tests/events/test_saving.py", "tests/outbox/test_order.py", "tests/worker/test_classes.py"),
)
IMPORT_ALL = """
import importlib, pathlib, sys, django
django.setup()
root = pathlib.Path(sys.argv[1])
for file in sorted(root.rglob("*.py")):
    parts = file.relative_to(root.parent).with_suffix("").parts
    if parts[1] not in ("management", "testing", "urls"):
        importlib.import_module(".".join(parts))
print("all imported")
"""


@pytest.fixture
def core(tmp_path: Path) -> Path:
    """A folder with a copy of the package that has no extension."""
    shutil.copytree(ROOT / "django_fairque", tmp_path / "django_fairque", ignore=shutil.ignore_patterns("__pycache__"))
    for name in EXTENSIONS:
        shutil.rmtree(tmp_path / "django_fairque" / name)
    return tmp_path


def run(core: Path, *words: str) -> str:
    path = os.pathsep.join(map(str, (core, ROOT, ROOT / "testproject")))
    environment = {**os.environ, "PYTHONPATH": path, "DJANGO_SETTINGS_MODULE": "tests.core_settings"}
    environment.pop("PYTEST_ADDOPTS", None)
    done = subprocess.run(
        [sys.executable, *words], cwd=core, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    return done.stdout


def test_each_core_module_can_be_imported_without_extensions(core: Path) -> None:
    assert "all imported" in run(core, "-c", IMPORT_ALL, str(core / "django_fairque"))


@pytest.mark.thorough
def test_tests_of_the_core_pass_without_extensions(core: Path) -> None:
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml"))
    path = f"pythonpath={core} {ROOT} {ROOT / 'testproject'}"
    assert " passed" in run(core, *words, "-o", path, *(str(ROOT / name) for name in CORE_TESTS))
