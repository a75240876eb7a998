"""Real worker processes on a real server: started by the command, as an operator would."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Protocol, cast

import psutil
import pytest

from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.queue import FairQueue
from tests.worker import preloaded
from tests.worker.preloaded import WARNINGS, Copies, Copy

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
    from pathlib import Path

    from redis import Redis
    from typing_extensions import Self

    from tests.servers import Server

ROOT = preloaded.ROOT
STARTED, ENDED = "tests:started", "tests:ended"
"""The lists in which the project's tasks record that they begin and end."""
DEADLINE = 60.0
"""Seconds after which something that should happen at once counts as never."""


def eventually(condition: Callable[[], Any], seconds: float = DEADLINE) -> Any:
    """The condition's first true value; fails when there is none in time."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "the condition did not become true in time"
        time.sleep(0.005)
    return value


def is_alive(process: psutil.Process) -> bool:
    """Return whether the process runs. A zombie does not, although its parent may not have waited for it yet."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@functools.cache
def _copies() -> Copies:
    copies = Copies()
    atexit.register(copies.close)
    return copies


def _may_be_copied(environment: Mapping[str, str]) -> bool:
    """Return whether a copy can replace a new interpreter. With other options of Python, or with coverage, it can not."""
    is_measured = any(name.startswith("COV") for name in os.environ)
    return sys.platform == "linux" and not is_measured and not any(name.startswith("PYTHON") for name in environment)


class WorkerProcess:
    """`manage.py fairque_worker` on the tests' own project, of the package that is here, or in another `PYTHONPATH`.

    Lower-case names in ``environment`` are options of `WORKER`: ``lease_seconds="3"``.
    """

    def __init__(self, server: Server | str, directory: Path, *arguments: str, **environment: str) -> None:
        environment = {
            f"FAIRQUE_WORKER__{name.upper()}" if name.islower() else name: value for name, value in environment.items()
        }
        self.health_file = directory / f"health-{time.monotonic_ns()}.json"
        self._log = directory / f"log-{time.monotonic_ns()}"
        variables = {
            **os.environ,
            **WARNINGS,
            "DJANGO_SETTINGS_MODULE": "tests.worker.project.settings",
            "PYTHONPATH": str(ROOT),
            "TEST_SERVER": server if isinstance(server, str) else server.url,
            **environment,
        }
        command = [*self._command(), *arguments]
        self._process: subprocess.Popen[bytes] | Copy
        if command[:2] == ["-m", "django"] and _may_be_copied(environment):
            self._log.touch()
            self._process = Copy(_copies(), command[2:], variables, self._log)
            return
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, *command],
                cwd=environment.get("PYTHONPATH", str(ROOT)).split(os.pathsep)[0],
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _command(self) -> list[str]:
        return ["-m", "django", "fairque_worker", "--health-file", str(self.health_file)]

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
        for process in self.health().get("processes", []):
            if process["ready"]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    found.append(psutil.Process(int(process["pid"])))
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
        """Stop the worker with SIGTERM, like an operator, and return its exit code."""
        self.send(signal.SIGTERM)
        return self.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        sys.stdout.write(self.log)  # pytest prints this if the test fails


both_ways = pytest.mark.parametrize("start_method", [pytest.param("spawn", marks=pytest.mark.slow), "forkserver"])
"""For tests that must pass with every start method. Spawned processes are slow, because each imports everything."""


@pytest.fixture
def start_method() -> str:
    return "auto"


_STARTED = pytest.StashKey[list[WorkerProcess]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the logs of the workers to the report of a failed test: a rare failure leaves little else."""
    report = yield
    if report.failed:
        report.sections += [("log of a worker", worker.log) for worker in item.stash.get(_STARTED, [])]
    return report


class Program(WorkerProcess):
    """Another program of Python, which runs a worker of the same project."""

    def _command(self) -> list[str]:
        return []


class StartWorker(Protocol):
    def __call__(self, *arguments: str, **environment: str) -> WorkerProcess: ...


class Workers:
    """Worker processes on an empty server, and the queue ``default`` that they serve."""

    def __init__(self, server: Server, redis: Redis, queue: FairQueue, directory: Path, start_method: str) -> None:
        self.redis = redis
        self.queue = queue
        self.processes: list[WorkerProcess] = []
        self._server, self._directory, self._start_method = server, directory, start_method

    def start(self, *arguments: str, **environment: str) -> WorkerProcess:
        environment = {"start_method": self._start_method, **environment}
        self.processes.append(WorkerProcess(self._server, self._directory, *arguments, **environment))
        return self.processes[-1]

    def start_program(self, *arguments: str, **environment: str) -> Program:
        """Start Python with these arguments."""
        self.processes.append(program := Program(self._server, self._directory, *arguments, **environment))
        return program

    def push(self, name: str, *args: object, **options: Any) -> str:
        """Push one task as `enqueue` would, and return its id."""
        user, into = options.pop("user", "ann"), cast("FairQueue", options.pop("into", self.queue))
        return into.push(Task.create(user, 3, {"args": args, "kwargs": {}}, name=name, **options)).task_id

    def state(self, task_id: str) -> TaskState:
        return self.queue.get_task(task_id).state

    def states(self, task_ids: Iterable[str]) -> set[TaskState]:
        return set(map(self.state, task_ids))

    def results(self, task_ids: Iterable[str]) -> list[Any]:
        return [self.queue.get_task(task_id).result for task_id in task_ids]

    def kinds(self, task_id: str) -> list[str]:
        """Return how each attempt of the task ended, except the one that finished."""
        return [attempt.kind for attempt in self.queue.history(task_id)]

    def wait_for(self, *task_ids: str, state: TaskState = TaskState.FINISHED) -> None:
        for task_id in task_ids:
            eventually(lambda task_id=task_id: self.state(task_id) is state)  # type: ignore[misc]

    def run(self, name: str, *args: object, **options: Any) -> str:
        """Push a task, wait until it has finished, and return its id."""
        task_id = self.push(name, *args, **options)
        self.wait_for(task_id)
        return task_id

    def started(self) -> list[tuple[str, int]]:
        """Return ``(task id, process id)`` of each start that a task has recorded."""
        return recorded(self.redis, STARTED)

    def starts(self) -> Counter[str]:
        """Return how often each task has started."""
        return Counter(task_id for task_id, _ in self.started())

    def ended(self) -> list[tuple[str, int]]:
        """Return ``(task id, process id)`` of each end that a task has recorded."""
        return recorded(self.redis, ENDED)

    def wait_started(self, count: int | None = None) -> list[tuple[str, int]]:
        """Wait until ``count`` starts are recorded (any number if None), and return them."""
        found: list[tuple[str, int]] = eventually(
            lambda: (all_ := self.started()) and count in (None, len(all_)) and all_
        )
        return found

    def wait_ended(self, count: int | None = None) -> None:
        eventually(lambda: (ended := self.ended()) and count in (None, len(ended)))


@pytest.fixture
def workers(
    request: pytest.FixtureRequest, server: Server, redis: Redis, queue: FairQueue, tmp_path: Path, start_method: str
) -> Iterator[Workers]:
    """Start workers; at the end they are gone, and what they left in the queue is consistent."""
    workers = Workers(server, redis, queue, tmp_path, start_method)
    request.node.stash[_STARTED] = workers.processes
    yield workers
    for worker in workers.processes:
        worker.close()
    assert queue.check_invariants() == []


@pytest.fixture
def start_worker(workers: Workers) -> StartWorker:
    return workers.start


@pytest.fixture
def queue(redis: Redis) -> FairQueue:
    return FairQueue(redis, "default", QueueConfig(retry_base_seconds=0.05, retry_jitter=0))


class Push(Protocol):
    def __call__(self, name: str, *args: object, **options: Any) -> str: ...


@pytest.fixture
def push(server: Server, redis: Redis, queue: FairQueue, tmp_path: Path) -> Push:
    """Push one task as `enqueue` would; returns its id."""
    return Workers(server, redis, queue, tmp_path, "auto").push


def recorded(redis: Redis, where: str) -> list[tuple[str, int]]:
    """``(task id, process id)`` of each time a task said that it began, or ended."""
    entries: Any = redis.lrange(where, 0, -1)
    redis.ping()  # now the server has answered the tasks too: a test that kills it here does not make them fail
    lines = [line.decode().split(" ") for line in entries]
    return [(task_id, int(pid)) for task_id, pid, *_ in lines]
