"""The declaration of a project that is moved, and its run: a copy, its tests, the port, its tests again."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.servers import Server
from tests.topologies import free_port

from .edits import Edits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .edits import LineCounts

CHECKOUT = Path(__file__).parents[3]
IGNORED = shutil.ignore_patterns(".git", ".venv", "node_modules")

SERVER_VARIABLE = "FAIRQUE_PORT_REDIS"
"""Has the port of a server for the tests of a project that need one without the port, too."""


class SkippedError(Exception):
    """A project can't be tried on this machine; the text says why."""


@dataclass(frozen=True)
class TestCounts:
    """The numbers of tests that passed and that failed or had errors, and the end of the output."""

    passed: int
    failed: int
    skipped: int
    output: str

    def __str__(self) -> str:
        skipped = f", {self.skipped} skipped" if self.skipped else ""
        return f"{self.passed} passed, {self.failed} failed{skipped}"


@dataclass(frozen=True)
class Result:
    """The result of a port."""

    lines: LineCounts
    before: TestCounts
    after: TestCounts

    @property
    def is_right(self) -> bool:
        """Whether as many tests pass as before, and none fails that passed."""
        return self.after.passed >= self.before.passed > 0 and self.after.failed <= self.before.failed


@dataclass(frozen=True)
class Project:
    """A project that uses another queue, and its port.

    ``command`` are the arguments of the project's Python that run its tests. ``folder``, below the root of the project,
    is where they run and where the files are that ``apply`` changes. ``environment`` returns variables for the tests.
    ``prepare`` changes the copy before the first run of its tests; these lines are not counted.
    """

    name: str
    queue: str
    apply: Callable[[Edits], None]
    command: tuple[str, ...]
    environment: Callable[[], Mapping[str, str]] = dict
    folder: str = "."
    prepare: Callable[[Edits], None] = lambda edits: None

    @property
    def variable(self) -> str:
        return f"FAIRQUE_PORT_{self.name.upper()}"

    def find_snapshot(self) -> Path:
        """Return the folder of the snapshot. Raises `SkippedError` without it, its environment, or PostgreSQL."""
        if "PGHOST" not in os.environ:
            raise SkippedError("no PostgreSQL is installed here")
        given = os.environ.get(self.variable)
        if not given:
            raise SkippedError(
                f"{self.variable} is not set: expected the folder of a snapshot with an environment in .venv"
            )
        snapshot = Path(given).absolute()
        if not (snapshot / ".venv/bin/python").exists():
            raise SkippedError(f"{snapshot} has no .venv/bin/python: install the project's packages there")
        return snapshot

    def run(self) -> Result:
        """Run the tests of a copy of the snapshot, apply the port, and run the tests again."""
        snapshot = self.find_snapshot()
        port = str(free_port())
        with (
            tempfile.TemporaryDirectory(prefix=f"fq-port-{self.name}-") as folder,
            Server("--port", port, "--bind", "127.0.0.1"),
        ):
            variables = {**os.environ, **self.environment(), SERVER_VARIABLE: port, "PYTHONDONTWRITEBYTECODE": "1"}
            root = Path(folder) / self.name
            shutil.copytree(snapshot, root, ignore=IGNORED, symlinks=True)
            python = snapshot / ".venv/bin/python"
            self.prepare(Edits(root / self.folder))
            before = self._run_tests(python, root, variables)
            _install_package(python)
            edits = Edits(root / self.folder)
            self.apply(edits)
            return Result(edits.count_lines(), before, self._run_tests(python, root, variables))

    def _run_tests(self, python: Path, root: Path, variables: Mapping[str, str]) -> TestCounts:
        done = subprocess.run(
            [str(python), *self.command],
            cwd=root / self.folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        return read_counts(done.stdout)


def _install_package(python: Path) -> None:
    """Install this checkout's package in the project's environment, as its users do: built, with its dependencies."""
    package = f"django-fairque[embedded] @ {CHECKOUT.as_uri()}"
    command = ["uv", "pip", "install", "--quiet", "--python", str(python), "--reinstall-package", "django-fairque"]
    subprocess.run([*command, package], check=True, stdout=sys.stderr)


def read_counts(output: str) -> TestCounts:
    """Return the numbers in the last lines of pytest, or of Django's test runner."""
    if ran := re.findall(r"^Ran (\d+) tests? in", output, re.MULTILINE):
        found = {kind: int(number) for kind, number in re.findall(r"(failures|errors|skipped)=(\d+)", output[-500:])}
        failed, skipped = found.get("failures", 0) + found.get("errors", 0), found.get("skipped", 0)
        return TestCounts(int(ran[-1]) - failed - skipped, failed, skipped, output)
    (*_, summary) = ["", *re.findall(r"^.*\d+ (?:passed|failed|errors?)\b.* in [\d.]+s.*$", output, re.MULTILINE)]
    found = {kind: int(number) for number, kind in re.findall(r"(\d+) (passed|failed|error|skipped)", summary)}
    return TestCounts(
        found.get("passed", 0), found.get("failed", 0) + found.get("error", 0), found.get("skipped", 0), output
    )
