"""Fixtures every test may use: a real server, clients on an empty database, servers of one's own."""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import signal
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from unittest.mock import patch

import hypothesis
import pytest
from django.core.management.commands import flush

from django_fairque.conf.current import intercept_tasks
from tests import open_connections
from tests.servers import Server, server_binary

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator, Iterator

    from redis import Redis
    from redis.asyncio import Redis as AsyncRedis


# Images of Python often forbid bytecode. A run of the tests starts thousands of processes, and each would compile Django and
# all tests again, which doubles the time of the run. The processes of xdist inherit the environment of this one.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A slow machine is no failure; the databases a test gets from a fixture it empties between examples itself.
hypothesis.settings.register_profile(
    "fairque",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.function_scoped_fixture],
)
hypothesis.settings.load_profile("fairque")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """``-n auto`` is two for each processor: a third of the time, tests wait for processes that they have started."""
    return 2 * (os.cpu_count() or 1)


def pytest_configure() -> None:
    # Before Python 3.12 asking for a loop in a main thread that never had one makes one. pytest-asyncio 1.3 asks before
    # each coroutine test and nobody closes it: collected later, it failed whichever test was running then.
    asyncio.set_event_loop(None)
    open_connections.watch()
    os.environ.pop("PYTEST_ADDOPTS", None)  # options of this run, not of the runs that tests start
    # A process that a shell starts in the background or with nohup ignores these signals; its child processes do, too.
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collect without looking for garbage: nearly everything stays until the end, so no later collection examines it again."""
    gc.disable()
    try:
        _import_share(session.config)
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _import_share(config: pytest.Config) -> None:
    """Import some test files before all others: in a new checkout, each process of xdist then compiles other files."""
    process = getattr(config, "workerinput", None)
    if process is None or config.args != config.getini("testpaths"):
        return
    tests = Path(__file__).parent
    files = sorted(tests.rglob("test_*.py"))
    for file in files[int(process["workerid"].removeprefix("gw")) :: process["workercount"]]:
        with suppress(Exception, pytest.skip.Exception):  # reported when the file is collected
            importlib.import_module(".".join(file.relative_to(tests.parent).with_suffix("").parts))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    open_connections.close_databases()
    left = open_connections.left_open()
    if left:
        pytest.fail(
            "these connections are open and their event loop is closed; close their clients:\n" + "\n".join(left)
        )


def pytest_report_header() -> str:
    return f"server: {server_binary()}"


@pytest.fixture(scope="session", autouse=True)
def use_servers() -> Iterator[None]:
    """Let these tests use the servers that they name: nothing is captured by itself."""
    with intercept_tasks(None):
        yield


@pytest.fixture(scope="session", autouse=True)
def keep_permissions() -> Iterator[None]:
    """Keep content types and permissions when a test empties its databases: making them anew takes longer than most tests."""

    def sql_flush(style: Any, connection: Any, **options: Any) -> Any:
        tables = connection.introspection.django_table_names(only_existing=True, include_views=False)
        emptied = set(tables) - {"django_content_type", "auth_permission"}
        return connection.ops.sql_flush(style, sorted(emptied), **options)

    with patch.object(flush, "sql_flush", sql_flush), patch.object(flush, "emit_post_migrate_signal"):
        yield


class MakeServer(Protocol):
    def __call__(self, *args: str) -> Server: ...


@pytest.fixture(scope="session")
def shared_server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture
def server(shared_server: Server) -> Server:
    """The server that this test process shares, its databases empty. A test that stops or configures one takes `make_server`."""
    shared_server.start()  # a test before may have ended it
    with shared_server.client() as client:
        _end_waits(client)
        client.flushall()
    return shared_server


@pytest.fixture
def redis(server: Server) -> Iterator[Redis]:
    """A client of `server`."""
    with server.client() as client:
        yield client


def _end_waits(client: Redis) -> None:
    """End the waits of earlier tests' workers: they would start new tasks at the machine's time, not at the test's."""
    waiting = [connection["id"] for connection in client.client_list() if "b" in connection["flags"]]
    for client_id in waiting:
        client.client_unblock(int(client_id))


@pytest.fixture
async def aredis(server: Server, redis: Redis) -> AsyncIterator[AsyncRedis]:
    """As `redis`, for coroutines."""
    client = server.async_client()
    yield client
    await client.aclose()


@pytest.fixture
def make_server() -> Iterator[MakeServer]:
    """Start servers of the test's own: `make_server("--maxmemory", "10mb")`. They end with the test."""
    with ExitStack() as stack:
        yield lambda *args: stack.enter_context(Server(*args))
