"""Real worker processes on a real server: started by the command, as an operator would."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import psutil
import pytest

from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.queue import FairQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from redis import Redis

    from tests.servers import Server

ROOT = Path(__file__).parent.parent.parent
DEADLINE = 60.0
"""Seconds after which something that should happen at once counts as never."""


def eventually(condition: Callable[[], Any], seconds: float = DEADLINE) -> Any:
    """The condition's first true value; fails when there is none in time."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)
    return value


def is_alive(process: psutil.Process) -> bool:
    """A zombie is not: whoever should bury it may be somebody else."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


class WorkerProcess:
    """`manage.py fairque_worker` on the tests' own project, of the package that is here, or in another `PYTHONPATH`."""

    def __init__(self, server: Server | str, directory: Path, *arguments: str, **environment: str) -> None:
        self.health_file = directory / f"health-{time.monotonic_ns()}.json"
        self._log = directory / f"log-{time.monotonic_ns()}"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "django", "fairque_worker", "--health-file", str(self.health_file), *arguments],
                cwd=environment.get("PYTHONPATH", str(ROOT)).split(os.pathsep)[0],
                env={
                    **os.environ,
                    "DJANGO_SETTINGS_MODULE": "tests.worker.project.settings",
                    "PYTHONPATH": str(ROOT),
                    "PYTHONWARNINGS": "always::ResourceWarning",  # what it leaves open is seen without Python's development mode
                    "TEST_SERVER": server if isinstance(server, str) else server.url,
                    **environment,
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def health(self) -> dict[str, Any]:
        try:
            content: dict[str, Any] = json.loads(self.health_file.read_text())
        except FileNotFoundError:
            return {}
        return content

    def children(self) -> list[psutil.Process]:
        """The processes that run tasks and are ready."""
        found = []
        for each in self.health().get("processes", []):
            if each["ready"]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    found.append(psutil.Process(int(each["pid"])))
        return found

    def wait_ready(self, processes: int = 1) -> WorkerProcess:
        eventually(lambda: len(self.children()) >= processes or self._fail_if_ended())
        return self

    def _fail_if_ended(self) -> bool:
        assert self._process.poll() is None, self.log
        return False

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self, seconds: float = DEADLINE) -> int:
        return self._process.wait(seconds)

    def stop(self) -> int:
        """As an operator stops it; the exit code."""
        self.send(signal.SIGTERM)
        return self.wait()

    def close(self) -> None:
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        sys.stdout.write(self.log)  # of a test that fails, pytest prints it


class StartWorker(Protocol):
    def __call__(self, *arguments: str, **environment: str) -> WorkerProcess: ...


both_ways = pytest.mark.parametrize("start_method", [pytest.param("spawn", marks=pytest.mark.slow), "forkserver"])
"""For tests of what must hold however processes begin. The spawned ones, each of which imports everything, are slow."""


@pytest.fixture
def start_method() -> str:
    return "auto"


_STARTED = pytest.StashKey[list[WorkerProcess]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What its workers said is most of what can be known of a test that fails once in a thousand times."""
    report = yield
    if report.failed:
        report.sections += [("log of a worker", worker.log) for worker in item.stash.get(_STARTED, [])]
    return report


@pytest.fixture
def start_worker(
    request: pytest.FixtureRequest, server: Server, redis: Redis, tmp_path: Path, queue: FairQueue, start_method: str
) -> Iterator[StartWorker]:
    """Start workers; at the end they are gone, and what they left in the queue is consistent."""
    workers: list[WorkerProcess] = []
    request.node.stash[_STARTED] = workers

    def start(*arguments: str, **environment: str) -> WorkerProcess:
        environment = {"FAIRQUE_WORKER__START_METHOD": start_method, **environment}
        workers.append(WorkerProcess(server, tmp_path, *arguments, **environment))
        return workers[-1]

    yield start
    for worker in workers:
        worker.close()
    assert queue.check_invariants() == []


@pytest.fixture
def queue(redis: Redis) -> FairQueue:
    return FairQueue(redis, "default", QueueConfig(retry_base_seconds=0.05, retry_jitter=0))


class Push(Protocol):
    def __call__(self, name: str, *args: object, **options: Any) -> str: ...


@pytest.fixture
def push(queue: FairQueue) -> Push:
    """Push one task as `enqueue` would; returns its id."""

    def push(name: str, *args: object, **options: Any) -> str:
        user, into = options.pop("user", "ann"), cast("FairQueue", options.pop("into", queue))
        return into.push(Task.create(user, 3, {"args": args, "kwargs": {}}, name=name, **options)).task_id

    return push


def recorded(redis: Redis, where: str) -> list[tuple[str, int]]:
    """``(task id, process id)`` of each time a task said that it began, or ended."""
    entries: Any = redis.lrange(where, 0, -1)
    lines = [line.decode().split(" ") for line in entries]
    return [(task_id, int(pid)) for task_id, pid, *_ in lines]
