"""However processes begin, they are alike; a fork server that can't be had, or dies, costs nothing."""

from __future__ import annotations

import errno
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from django.conf import settings

from django_fairque.engine.model.records import TaskState
from django_fairque.worker.supervisor.process_factory import can_fork
from django_fairque.worker.supervisor.supervisor import Reloader
from tests.worker.conftest import Workers, both_ways, eventually, is_alive

if TYPE_CHECKING:
    from django_fairque.engine.queue.queue import FairQueue
    from tests.servers import Server
    from tests.worker.conftest import Push, WorkerProcess

forked = pytest.mark.parametrize("start_method", ["forkserver"])
forked_if_possible = pytest.mark.parametrize("start_method", ["auto", "forkserver"])


@pytest.fixture
def more_tasks(tmp_path: Path) -> Path:
    """A module of the project's, to be written by the test."""
    return tmp_path / "more_tasks.py"


def server_of(worker: WorkerProcess) -> psutil.Process:
    """The process that its children were forked from."""
    (parent,) = {child.ppid() for child in worker.children()}
    assert parent != worker.pid
    return psutil.Process(parent)


def portraits(queue: FairQueue, push: Push, worker: WorkerProcess) -> list[dict[str, Any]]:
    """Return the portraits of both processes of a worker, each of which runs one task at a time."""
    found: dict[int, dict[str, Any]] = {}

    def seen() -> bool:
        ids = [push("portrait") for _ in range(2)]
        for task_id in ids:
            eventually(lambda task_id=task_id: queue.get_task(task_id).state is TaskState.FINISHED)  # type: ignore[misc]
            result = queue.get_task(task_id).result
            found[result["pid"]] = result
        return len(found) == 2

    eventually(seen)
    return list(found.values())


@pytest.mark.slow
def test_forked_processes_are_like_spawned_ones(workers: Workers) -> None:
    alike: list[dict[str, Any]] = []
    for method in ("spawn", "forkserver"):
        worker = workers.start(
            *("--processes", "2", "--concurrency", "1", "--start-method", method), PYTHONFAULTHANDLER="1"
        ).wait_ready(2)
        one, other = portraits(workers.queue, workers.push, worker)
        assert one["chance"] != other["chance"]
        for portrait in (one, other):
            assert portrait["process"].startswith(f"{worker.health()['worker']}.")
            assert (portrait["parent"] == worker.pid) is (method == "spawn")
            alike.append(
                {key: portrait[key] for key in portrait.keys() - {"pid", "parent", "process", "chance", "argv"}}
            )
            assert portrait["argv"][-1] == method
        assert worker.stop() == 0
        assert "died" not in worker.log
    assert alike == [alike[0]] * 4
    assert alike[0]["faulthandler"] is True


@pytest.mark.thorough
@forked
def test_a_fork_server_loads_code_once(workers: Workers, more_tasks: Path, tmp_path: Path, start_method: str) -> None:
    loads = tmp_path / "loads"
    more_tasks.write_text(f"import os\nopen({str(loads)!r}, 'a').write(f'{{os.getpid()}}\\n')")
    worker = workers.start("--processes", "3", TEST_MORE_TASKS=str(more_tasks)).wait_ready(3)
    worker.children()[0].kill()
    eventually(lambda: len(worker.children()) == 3)
    assert loads.read_text().split() == [str(worker.pid)]
    server_of(worker).kill()
    eventually(lambda: len(loads.read_text().split()) == 2)  # the supervisor has threads by now, and can't be copied
    eventually(lambda: len(worker.children()) == 3)
    assert loads.read_text().split() == [str(worker.pid), str(server_of(worker).pid)]


@both_ways
def test_objects_loaded_at_the_start_are_left_out_of_garbage_collections(
    workers: Workers, more_tasks: Path, tmp_path: Path, start_method: str
) -> None:
    ended = tmp_path / "ended"
    more_tasks.write_text(
        "import atexit, gc, os\n"
        f"write = open({str(ended)!r}, 'a', buffering=1).write\n"
        "atexit.register(lambda: write(f'{os.getpid()} {gc.get_freeze_count()}\\n'))\n"
    )
    worker = workers.start("--processes", "1", TEST_MORE_TASKS=str(more_tasks)).wait_ready()
    (child,) = worker.children()
    processes = {worker.pid, child.ppid(), child.pid}
    assert worker.stop() == 0
    lines = [line.split() for line in ended.read_text().splitlines()]
    assert {int(pid) for pid, _ in lines} == processes
    assert min(int(objects) for _, objects in lines) > 10_000  # all of Django's and the project's


_CALLED = """
import django
django.setup()
from django.core.management import call_command
try:
    call_command("fairque_worker", burst=True)
finally:
    print("cleaned up")
"""


@pytest.mark.thorough
def test_a_program_that_calls_the_command_is_not_copied(workers: Workers, more_tasks: Path, tmp_path: Path) -> None:
    """A copy would go on behind the call when it ends, and clean up what is still in use."""
    loads, task_id = tmp_path / "loads", workers.push("noop")
    more_tasks.write_text(f"import os\nopen({str(loads)!r}, 'a').write(f'{{os.getpid()}}\\n')")
    program = workers.start_program("-c", _CALLED, TEST_MORE_TASKS=str(more_tasks))
    assert program.wait() == 0
    assert workers.state(task_id) is TaskState.FINISHED
    assert program.log.count("cleaned up") == 1
    assert len(loads.read_text().split()) == 2  # here and in the fork server


@pytest.mark.thorough
@forked
def test_a_fork_server_that_is_killed_is_replaced(workers: Workers, start_method: str) -> None:
    worker = workers.start("--processes", "2", "--concurrency", "1").wait_ready(2)
    children, server = worker.children(), server_of(worker)
    ids = [workers.push("nap", 1.0) for _ in range(4)]
    workers.wait_started(2)
    server.kill()
    eventually(lambda: not any(map(is_alive, children)))
    workers.wait_for(*ids)
    kinds = [attempt.kind for task_id in ids for attempt in workers.queue.history(task_id)]
    assert [kind for kind in kinds if kind != "released"] == ["crashed"] * 2  # tasks that have not begun are given back
    assert "the fork server of worker" in worker.log
    assert server_of(worker).pid != server.pid
    assert worker.stop() == 0


@pytest.mark.slow
@forked
def test_a_fork_server_that_is_frozen_is_replaced(workers: Workers, start_method: str) -> None:
    worker = workers.start("--concurrency", "1").wait_ready()
    (child,), server = worker.children(), server_of(worker)
    server.suspend()
    child.kill()
    eventually(lambda: {child.pid for child in worker.children()} - {child.pid})
    assert not is_alive(server)
    workers.run("add", 1, 1)


@both_ways
def test_a_signal_to_all_processes_lets_running_tasks_end(workers: Workers, start_method: str) -> None:
    worker = workers.start("--processes", "2", "--concurrency", "1").wait_ready(2)
    ids = [workers.push("nap", 1.0) for _ in range(2)]
    workers.wait_started(2)
    os.killpg(worker.pid, signal.SIGTERM)
    assert worker.wait() == 0
    assert len(workers.ended()) == 2
    assert workers.states(ids) == {TaskState.FINISHED}


@forked
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_stopped_worker_leaves_no_fork_server(workers: Workers, number: signal.Signals, start_method: str) -> None:
    worker = workers.start("--processes", "2").wait_ready(2)
    family = [*worker.children(), server_of(worker)]
    worker.send(number)
    worker.wait()
    eventually(lambda: not any(map(is_alive, family)))


@pytest.mark.thorough
@forked_if_possible
def test_a_fork_server_with_threads_spawns_processes(workers: Workers, more_tasks: Path, start_method: str) -> None:
    more_tasks.write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, name='watcher', daemon=True).start()"
    )
    worker = workers.start("--processes", "2", TEST_MORE_TASKS=str(more_tasks)).wait_ready(2)
    assert {child.ppid() for child in worker.children()} == {worker.pid}
    message = {
        "auto": "INFO    processes are spawned, not forked: ",
        "forkserver": "WARNING processes are spawned, although START_METHOD is forkserver: ",
    }
    assert worker.log.count(message[start_method]) == 1
    assert "the project has started threads (watcher)" in worker.log
    workers.run("add", 1, 1)


@pytest.mark.parametrize("name", ["os.pidfd_open", "os.memfd_create", "signal.pidfd_send_signal"])
def test_a_sandbox_without_the_needed_system_calls_is_recognized(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def refused(*_: Any) -> Any:
        raise PermissionError(errno.EPERM, "not permitted")

    assert can_fork()
    monkeypatch.setattr(name, refused)
    assert not can_fork()


def serves_forked(queue: FairQueue, push: Push, worker: WorkerProcess) -> bool:
    """Whether its processes were forked; it runs tasks either way."""
    good = push("add", 1, 1)
    eventually(lambda: queue.get_task(good).state is TaskState.FINISHED)
    return {child.ppid() for child in worker.children()} != {worker.pid}


def test_worker_processes_are_forked_by_default(workers: Workers, more_tasks: Path) -> None:
    more_tasks.write_text("import socket\nLOG = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)")
    worker = workers.start("--processes", "2", TEST_MORE_TASKS=str(more_tasks)).wait_ready(2)
    assert serves_forked(workers.queue, workers.push, worker)
    assert "spawned" not in worker.log


@pytest.mark.thorough
@forked_if_possible
def test_an_open_connection_is_shared_only_if_forkserver_is_required(
    workers: Workers, server: Server, more_tasks: Path, start_method: str
) -> None:
    more_tasks.write_text(
        "import os, redis\nMINE = redis.Redis.from_url(os.environ['TEST_SERVER'])\nMINE.ping()\n"
        "import socket\nENDS = socket.socketpair()"
    )
    worker = workers.start("--processes", "2", TEST_MORE_TASKS=str(more_tasks)).wait_ready(2)
    assert serves_forked(workers.queue, workers.push, worker) == (start_method == "forkserver")
    whose = f"{server.socket}, a socket pair, a socket pair"
    why = f"importing the project opened connections ({whose}), which all forked processes would share"
    message = worker.log.count(f"INFO    processes are spawned, not forked: {why}")
    assert message == (start_method == "auto"), worker.log


@forked_if_possible
def test_connections_opened_at_import_are_closed(workers: Workers, more_tasks: Path, start_method: str) -> None:
    more_tasks.write_text(
        """
from django.db import connection
from django_fairque import get_queue, task

with connection.cursor() as cursor:
    cursor.execute("SELECT 1")
OPENED = connection.connection
BEFORE = get_queue()
BEFORE.client.ping()

@task(name="look")
def look() -> list:
    try:
        OPENED.execute("SELECT 1")
    except Exception as error:
        return [str(error), get_queue() is BEFORE, get_queue().client.ping()]
"""
    )
    server_of(workers.start(TEST_MORE_TASKS=str(more_tasks)).wait_ready())
    task_id = workers.run("look")
    assert workers.queue.get_task(task_id).result == ["Cannot operate on a closed database.", False, True]


@pytest.mark.thorough
@both_ways
def test_changed_code_is_loaded_by_a_new_fork_server(workers: Workers, more_tasks: Path, start_method: str) -> None:
    text = "from django_fairque import task\n\n@task(name='tell_version')\ndef tell_version() -> int:\n    return {}\n"
    more_tasks.write_text(text.format(1))
    worker = workers.start("--reload", TEST_MORE_TASKS=str(more_tasks)).wait_ready()
    (child,) = worker.children()
    servers = set() if start_method == "spawn" else {server_of(worker)}
    eventually(lambda: "watching the code" in worker.log)
    running = workers.push("nap", 1.0)
    workers.wait_started()

    def noticed() -> bool:
        more_tasks.write_text(text.format(22))
        return "more_tasks.py changed" in worker.log

    eventually(noticed)
    eventually(lambda: {child.pid for child in worker.children()} - {child.pid})
    workers.wait_for(running)
    assert (
        workers.queue.history(running) == []
    )  # its process, and what that was forked from, lived on until it had ended
    eventually(lambda: not is_alive(child))
    version = workers.run("tell_version")
    assert workers.queue.get_task(version).result == 22
    eventually(lambda: not any(map(is_alive, servers)))


def test_modules_that_only_tasks_import_are_watched_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "shop"
    package.mkdir()
    (package / "__init__.py").touch()
    late = package / "late.py"
    late.touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(Reloader, "SLEEP_TIME", 0)
    woken: list[bool] = []
    reloader = Reloader(lambda: woken.append(True))
    reloader.watch_project()
    checks = reloader.tick()
    next(checks)
    assert "shop.late" not in sys.modules
    os.utime(late, (2e9, 2e9))
    next(checks)
    assert (reloader.has_changed, woken) == (True, [True])


def test_changed_settings_are_reported_with_the_advice_to_restart(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("django_fairque.worker"), "propagate", True)
    reloader = Reloader(lambda: None)
    reloader.notify_file_changed(Path(__file__))
    assert "restart the worker" not in caplog.text
    reloader.notify_file_changed(Path(str(sys.modules[settings.SETTINGS_MODULE].__file__)))
    assert "settings have changed; restart the worker" in caplog.text


@both_ways
def test_exit_handlers_run_in_a_process(workers: Workers, more_tasks: Path, tmp_path: Path, start_method: str) -> None:
    ends = tmp_path / "ends"
    more_tasks.write_text(
        f"import atexit, os\natexit.register(lambda: open({str(ends)!r}, 'a').write(f'{{os.getpid()}}\\n'))"
    )
    worker = workers.start("--processes", "2", TEST_MORE_TASKS=str(more_tasks)).wait_ready(2)
    pids = {str(child.pid) for child in worker.children()}
    assert worker.stop() == 0
    assert pids < set(ends.read_text().split())
