"""Workers in surroundings of which something is missing."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from django_fairque.engine.model.records import TaskState
from tests.worker.conftest import ROOT, eventually, is_alive, recorded
from tests.worker.project.tasks import STARTED

from .cases import Outcome, case, require_namespaces

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.lab.neighbors.world import World

WORKER = [sys.executable, "-m", "django", "fairque_worker"]


class _Worker:
    """A worker that ``unshare`` starts."""

    def __init__(self, world: World, unshare: list[str], script: str, *arguments: str) -> None:
        self._log = world.directory / "worker.log"
        command = ["sh", "-ec", f'{script}exec "$@"', "sh", *WORKER, *arguments]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                ["unshare", *unshare, *command],
                cwd=ROOT,
                env={
                    **os.environ,
                    "DJANGO_SETTINGS_MODULE": "tests.worker.project.settings",
                    "PYTHONPATH": str(ROOT),
                    "TEST_SERVER": world.server.url,
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def supervisor(self) -> psutil.Process:
        """The process itself, or the one that ``unshare --fork`` has made."""
        process = psutil.Process(self._process.pid)
        return process.children()[0] if process.name() == "unshare" else process

    def stop(self) -> int:
        self.supervisor.send_signal(signal.SIGTERM)
        return self._process.wait(30)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@contextlib.contextmanager
def _worker(world: World, unshare: list[str], script: str, *arguments: str) -> Iterator[_Worker]:
    require_namespaces(*unshare)
    worker = _Worker(world, unshare, script, *arguments)
    try:
        yield worker
    except BaseException:
        sys.stderr.write(worker.log)
        raise
    finally:
        worker.close()


def _run_tasks(world: World, count: int) -> int:
    """Push tasks, wait for them, and return how many ran."""
    ids = [world.push(f"user{number % 5}", "add", 1, 2) for number in range(count)]
    world.wait_for(ids, TaskState.FINISHED, 60)
    return len(ids)


@case(
    "a worker that is process 1 of its container",
    expected="20 tasks run; processes that are replaced or killed leave no zombie; SIGTERM ends it with 0",
)
def process_1(world: World) -> Outcome:
    unshare = ["--pid", "--fork", "--kill-child", "--mount-proc"]
    with _worker(world, unshare, "", "--processes", "2", "--max-tasks", "3") as worker:
        killer = world.push("mallory", "dies", max_retries=0)
        count = _run_tasks(world, 20)
        eventually(lambda: world.queue.get_task(killer).state.is_ended, 60)

        def zombies() -> int:
            family = worker.supervisor.children(recursive=True)
            return sum(process.status() == psutil.STATUS_ZOMBIE for process in family if process.is_running())

        with contextlib.suppress(AssertionError, psutil.NoSuchProcess):
            eventually(lambda: zombies() == 0, 5)
        left, code = zombies(), worker.stop()
    return Outcome(f"{count} tasks ran; {left} zombies; exit code {code}", left == 0 and code == 0)


@case(
    "a read-only root, with one folder in memory (`/tmp`)",
    expected="20 tasks run and the health file is written; SIGTERM ends it with 0",
)
def read_only_root(world: World) -> Outcome:
    # The server's socket lies below /tmp too, so this is another folder.
    script = (
        f"mount --make-rprivate /; mkdir {world.directory}/tmp; mount -t tmpfs tmpfs {world.directory}/tmp; "
        f"mount -o bind,remount,ro /; export TMPDIR={world.directory}/tmp PYTHONDONTWRITEBYTECODE=1; "
        "if touch /read-only 2>/dev/null; then echo the root is writable; exit 99; fi; "
    )
    health = f"{world.directory}/tmp/health.json"
    with _worker(world, ["--mount"], script, "--processes", "2", "--health-file", health) as worker:
        count = _run_tasks(world, 20)
        inside = Path(f"/proc/{worker.supervisor.pid}/root{health}")
        is_written = eventually(lambda: inside.stat().st_size > 0)
        code = worker.stop()
    text = f"{count} tasks ran; health file {'written' if is_written else 'missing'}; exit code {code}"
    return Outcome(text, bool(is_written) and code == 0)


NO_PROC = "/proc can't be read"


@case("no `/proc`", expected="20 tasks run; one log line says what is missing; SIGTERM ends it with 0")
def no_proc(world: World) -> Outcome:
    script = "mount --make-rprivate /; mount -t tmpfs tmpfs /proc; "
    with _worker(world, ["--mount"], script, "--processes", "2") as worker:
        count = _run_tasks(world, 20)
        code = worker.stop()
        lines = sum(NO_PROC in line for line in worker.log.splitlines())
        raised = "Traceback" in worker.log
    text = f"{count} tasks ran; {lines} log line{'' if lines == 1 else 's'}; exit code {code}"
    return Outcome(text + ("; a traceback" if raised else ""), lines == 1 and code == 0 and not raised)


ALONE = """
import sys, django
django.setup()
from django_fairque import Worker
Worker(["default"], concurrency=2).run()
"""


@case(
    "a worker without supervisor: `Worker([...]).run()` in a program, stopped by SIGTERM",
    expected="the running task ends, and the program with 0; the task that waits is queued",
)
def without_supervisor(world: World) -> Outcome:
    log = world.directory / "alone.log"
    with log.open("wb") as output:
        program = subprocess.Popen(
            [sys.executable, "-c", ALONE],
            cwd=ROOT,
            env={
                **os.environ,
                "DJANGO_SETTINGS_MODULE": "tests.worker.project.settings",
                "PYTHONPATH": str(ROOT),
                "TEST_SERVER": world.server.url,
            },
            stdout=output,
            stderr=output,
        )
    try:
        running = world.push_many("ann", "nap", 2, 2.0)
        world.wait_for(running, TaskState.STARTED)
        waiting = world.push("ann", "nap", 2.0)
        program.send_signal(signal.SIGTERM)
        code = program.wait(30)
    finally:
        program.kill()
        program.wait()
    ended = {state.name.lower() for state in world.states(running)}
    left = world.queue.get_task(waiting).state.name.lower()
    text = f"running tasks: {', '.join(sorted(ended))}; the other one: {left}; exit code {code}"
    return Outcome(text, ended == {"finished"} and left == "queued" and code == 0)


LEASE_SECONDS = 3


@case(
    "a process that is frozen (SIGSTOP) while it runs a task of 1 s",
    expected=f"it is ended after twice the lease of {LEASE_SECONDS} s, and the task runs again within 15 s",
)
def frozen_process(world: World) -> Outcome:
    worker = world.start_worker(
        "--processes", "2", "--concurrency", "1", ready=2, FAIRQUE_WORKER__LEASE_SECONDS=str(LEASE_SECONDS)
    )
    task = world.push("ann", "nap", 1.0)
    (_, pid), *_ = eventually(lambda: recorded(world.redis, STARTED))
    frozen = next(child for child in worker.children() if child.pid == pid)
    frozen.send_signal(signal.SIGSTOP)
    began = world.now()
    world.wait_for([task], TaskState.FINISHED, 30)
    seconds, starts = world.now() - began, world.starts()[task]
    text = (
        f"finished {seconds:.1f} s later, in start {starts}; the process {'lives' if is_alive(frozen) else 'was ended'}"
    )
    return Outcome(text, seconds <= 15 and starts == 2 and not is_alive(frozen))
