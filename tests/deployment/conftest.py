"""Two versions of the package, with a worker of either, on one server."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import django_fairque
from tests.worker.conftest import ROOT, WorkerProcess, push, queue, start_method, start_worker, workers

if TYPE_CHECKING:
    from tests.servers import Server
    from tests.worker.conftest import StartWorker

__all__ = ["push", "queue", "start_method", "start_worker", "workers"]

# Each task's hash gets a field that the version before knows nothing of, from whatever takes or moves the task.
CHANGES = {
    "HSET', task.key, 'state',": "HSET', task.key, 'newer', '1', 'state',",
    "HSET', key, unpack(": "HSET', key, 'newer', '1', unpack(",
}
_PUSH = """
import json, sys, django
django.setup()
from django_fairque.conf import get_queue
from django_fairque.engine.model.task import Task
name, amount, user, args = sys.argv[1], int(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4])
tasks = [Task.create(f"{user}{n % 5}", 3, {"args": args, "kwargs": {}}, name=name) for n in range(amount)]
get_queue().push_batch(tasks)
print("\\n".join(task.task_id for task in tasks))
"""


@dataclass(frozen=True)
class Version:
    """A copy of the package, with its own worker and producer processes."""

    root: Path
    server: Server
    start_worker: StartWorker
    is_newer: bool

    def worker(self, *arguments: str) -> WorkerProcess:
        newer = {"TEST_NEWER_VERSION": "1"} if self.is_newer else {}
        return self.start_worker("--processes", "1", *arguments, PYTHONPATH=str(self.root), **newer)

    def push(self, name: str, *args: object, amount: int = 1) -> list[str]:
        """Push tasks as web processes of this version do. Returns the tasks' ids."""
        done = subprocess.run(
            [sys.executable, "-c", _PUSH, name, str(amount), self.root.name, json.dumps(args)],
            cwd=self.root,
            env={
                **os.environ,
                "DJANGO_SETTINGS_MODULE": "tests.worker.project.settings",
                "PYTHONPATH": str(self.root),
                "TEST_SERVER": self.server.url,
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.split()


def copied(root: Path) -> Path:
    """The package under ``root``; the tests' project stays where it is."""
    package = Path(django_fairque.__file__).parent
    shutil.copytree(package, root / "django_fairque", ignore=shutil.ignore_patterns("__pycache__"))
    (root / "tests").symlink_to(ROOT / "tests")
    return root


@pytest.fixture
def older(tmp_path: Path, server: Server, start_worker: StartWorker) -> Version:
    return Version(copied(tmp_path / "older"), server, start_worker, is_newer=False)


@pytest.fixture
def newer(tmp_path: Path, server: Server, start_worker: StartWorker) -> Version:
    root = copied(tmp_path / "newer")
    changed = dict.fromkeys(CHANGES, 0)
    for file in (root / "django_fairque" / "engine" / "lua" / "lib").glob("*.lua"):
        text = file.read_text()
        for before, after in CHANGES.items():
            changed[before] += text.count(before)
            text = text.replace(before, after)
        file.write_text(text)
    assert all(changed.values()), f"the commands are written otherwise by now: {changed}"
    return Version(root, server, start_worker, is_newer=True)
