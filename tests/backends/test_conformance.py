"""Django's own tests for backends, which its wheel leaves out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import django
import pytest

from django_fairque.testing import conformance

from .django_source import NotFetchedError, fetch

ROOT = Path(__file__).parent.parent.parent
LEAST = 45
"""Tests of Django 6.0 that must run: fewer would mean that some are not found."""

since_6 = pytest.mark.skipif(django.VERSION < (6, 0), reason="Django's own tests for backends come with Django 6.0")


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return fetch(tmp_path_factory.mktemp("source"))
    except (NotFetchedError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"Django's own tests did NOT run: {error}")


def run_conformance(source: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-X", "dev", "-W", "error", "-m", "django_fairque.testing.conformance", str(source)]
    return subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, check=False)


@since_6
def test_the_tests_of_django_pass(source: Path) -> None:
    done = run_conformance(source)
    assert done.returncode == 0, done.stderr + done.stdout
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("Django "))
    ran = int(line.partition("ran ")[2].partition(" ")[0])
    assert ran >= LEAST, line
    assert done.stdout.count("TestCase.test_") == 5


@since_6
def test_a_backend_that_does_not_conform_fails_the_tests_of_django(source: Path) -> None:
    done = run_conformance(source, "--backend", "tests.backends.forgetful.Forgetful")
    assert done.returncode == 1
    assert "FAIL: test_get_result " in done.stderr or "ERROR: test_get_result " in done.stderr


def test_a_folder_without_the_tests_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="expected an unpacked source distribution of Django"):
        conformance.find_tests(tmp_path)


@pytest.mark.parametrize("given", ["", "Django-6.0", "Django-6.0/tests"])
def test_the_tests_are_found_in_or_below_the_folder(tmp_path: Path, given: str) -> None:
    tests = tmp_path / "Django-6.0" / "tests"
    (tests / "tasks").mkdir(parents=True)
    (tests / "tasks" / "test_tasks.py").touch()
    assert conformance.find_tests(tmp_path / given) == tests
