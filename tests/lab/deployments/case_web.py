"""Web servers that make their processes in different ways."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tests.worker.conftest import eventually

from .cases import Outcome, case, require_program

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.lab.neighbors.world import World

PROCESSES, REQUESTS = 4, 90
TASKS_PER_REQUEST = 11
EXPECTED = (
    f"{REQUESTS * TASKS_PER_REQUEST} tasks of {REQUESTS} requests arrive, with different ids; `ready/` answers 200"
)


@contextmanager
def _serving(world: World, *command: str) -> Iterator[str]:
    """Run a web server for a block, which gets its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    log = world.directory / "web.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [word.replace("ADDRESS", address).replace("PORT", address.partition(":")[2]) for word in command],
            env={
                **os.environ,
                "DJANGO_SETTINGS_MODULE": "tests.lab.deployments.settings",
                "PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, [".", *sys.path]))),
                "TEST_SERVER": world.server.url,
            },
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield f"http://{address}"
    except BaseException:
        sys.stderr.write(log.read_text(errors="replace"))
        raise
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _get(url: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except OSError:
        return 0, b""


def _try(
    world: World, *command: str, is_loaded_once: bool, page: str = "push/", is_one_process: bool = False
) -> Outcome:
    with _serving(world, *command) as address:
        eventually(lambda: _get(f"{address}/{page}")[0] == 200, 60)  # four processes may load the project at once
        world.redis.flushdb()
        answers: list[dict[str, Any]] = []
        with ThreadPoolExecutor(2 * PROCESSES) as threads:
            for status, body in threads.map(_get, [f"{address}/{page}"] * REQUESTS):
                answers += [json.loads(body)] if status == 200 else []
        ready, _ = _get(f"{address}/fairque/ready/")
    ids = [task_id for answer in answers for task_id in answer["ids"]]
    arrived = world.queue.get_stats().states["queued"]
    processes = {answer["pid"] for answer in answers}
    loads = {answer["loaded_in"] for answer in answers}
    text = f"{arrived} arrived, {len(set(ids))} ids, of {len(processes)} processes; loaded {len(loads)} times; `ready/`: {ready}"
    wanted = REQUESTS * TASKS_PER_REQUEST
    is_right = (
        len(ids) == len(set(ids)) == arrived == wanted and ready == 200 and (len(processes) == 1) == is_one_process
    )
    return Outcome(text, is_right and (len(loads) == 1) == is_loaded_once)


def _uwsgi(world: World, *options: str, is_loaded_once: bool) -> Outcome:
    return _try(
        world,
        *(require_program("uwsgi"), "--http-socket", "ADDRESS", "--module", "tests.lab.deployments.web", "--need-app"),
        *("--master", "--die-on-term", "--processes", str(PROCESSES), "--virtualenv", sys.prefix, *options),
        is_loaded_once=is_loaded_once,
    )


@case("uWSGI as it is by default: loads the project, then forks in C", expected=EXPECTED)
def uwsgi_default(world: World) -> Outcome:
    return _uwsgi(world, is_loaded_once=True)


@case("uWSGI with `--enable-threads --threads 2`", expected=EXPECTED)
def uwsgi_threads(world: World) -> Outcome:
    return _uwsgi(world, "--enable-threads", "--threads", "2", is_loaded_once=True)


@case("uWSGI with `--lazy-apps`", expected=EXPECTED)
def uwsgi_lazy(world: World) -> Outcome:
    return _uwsgi(world, "--lazy-apps", is_loaded_once=False)


@case("gunicorn with `--preload`", expected=EXPECTED)
def gunicorn_preload(world: World) -> Outcome:
    return _try(
        world,
        *(require_program("gunicorn"), "tests.lab.deployments.web:application", "--preload", "--no-control-socket"),
        *("--bind", "ADDRESS", "--workers", str(PROCESSES)),
        is_loaded_once=True,
    )


@case("Daphne, which is one process: coroutines send with `aenqueue`", expected=EXPECTED)
def daphne(world: World) -> Outcome:
    return _try(
        world,
        *(require_program("daphne"), "--bind", "127.0.0.1", "--port", "PORT"),
        "tests.lab.deployments.web:asgi_application",
        page="apush/",
        is_loaded_once=True,
        is_one_process=True,
    )
