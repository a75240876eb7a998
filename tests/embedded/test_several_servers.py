"""``embedded://?servers=N``: a setting, and a worker runs on several server processes."""

from __future__ import annotations

import io
import os
import signal
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from django.core.management import CommandError, call_command

from django_fairque.conf import FairQueueConfig
from django_fairque.conf.redis import close_client
from django_fairque.embedded import EmbeddedServer
from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.queue import FairQueue
from tests.embedded.helpers import clean_up, kill, only_server_of, servers_of
from tests.worker.conftest import WorkerProcess, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from pytest_django import Settings

USERS = [f"user-{number}" for number in range(20)]


@pytest.fixture
def directories(place: Path) -> Iterator[list[Path]]:
    found = [place / "q", place / "q-1"]
    yield found
    for directory in found:
        clean_up(EmbeddedServer(directory))


@pytest.fixture
def url(directories: list[Path]) -> str:
    return f"embedded://{directories[0]}?servers=2"


@pytest.fixture
def run_worker(url: str, tmp_path: Path) -> Callable[[], AbstractContextManager[WorkerProcess]]:
    @contextmanager
    def run() -> Iterator[WorkerProcess]:
        worker = WorkerProcess(
            url,
            tmp_path,
            TEST_SHARDS="2",
            FAIRQUE_REDIS__SOCKET_TIMEOUT="3",
            FAIRQUE_REDIS__SOCKET_CONNECT_TIMEOUT="1",
            FAIRQUE_WORKER__POLL_INTERVAL="1",
        )
        try:
            yield worker.wait_ready()
            assert worker.stop() == 0
        finally:
            worker.close()

    return run


@pytest.fixture
def queue(url: str) -> Iterator[FairQueue]:
    redis = {"url": url, "socket_timeout": 3, "socket_connect_timeout": 1}
    config = FairQueueConfig.model_validate({"redis": redis, "worker": {"poll_interval": 1}})
    client = config.create_redis_client()
    yield FairQueue(client, config=config.queue_config())
    close_client(client)


def noop(user: str) -> Task:
    return Task.create(user, 3, {"args": [], "kwargs": {}}, name="noop")


def finished(queue: FairQueue) -> int:
    return queue.get_stats(0).states["finished"]


def users_on(queue: FairQueue, shard: int) -> list[str]:
    return [user for user in USERS if queue._shards.get_shard_index(user) == shard]


@pytest.mark.slow
def test_a_killed_server_of_several_loses_no_task(
    queue: FairQueue, run_worker: Callable[[], AbstractContextManager[WorkerProcess]], directories: list[Path]
) -> None:
    for directory in directories:  # always: with everysec a kill loses what is acknowledged while a sync is under way
        EmbeddedServer(directory, appendfsync="always").ensure()
    with run_worker():
        queue.push_batch([noop(user) for user in USERS])
        eventually(lambda: finished(queue) == len(USERS))
        before = [only_server_of(directory) for directory in directories]
        queue.pause()
        queue.push_batch([noop(user) for user in USERS])
        kill(directories[1])
        queue.resume()
        eventually(lambda: finished(queue) == 2 * len(USERS))
        assert only_server_of(directories[0]) == before[0]
        assert only_server_of(directories[1]) != before[1]
    assert [stats.states["finished"] for stats in queue.get_shard_stats()] == [
        2 * len(users_on(queue, shard)) for shard in (0, 1)
    ]


@pytest.mark.slow
def test_users_of_other_shards_are_served_while_a_server_is_frozen(
    queue: FairQueue, run_worker: Callable[[], AbstractContextManager[WorkerProcess]], directories: list[Path]
) -> None:
    here, there = users_on(queue, 0), users_on(queue, 1)
    living = queue.shards[0]
    with run_worker() as worker:
        queue.push_batch([noop(user) for user in USERS])
        eventually(lambda: finished(queue) == len(USERS))
        frozen = only_server_of(directories[1])
        os.kill(frozen, signal.SIGSTOP)
        try:
            began = time.monotonic()
            for _ in range(3):
                ids = [living.push(noop(user)).task_id for user in here]
                eventually(lambda ids=ids: all(living.get_task(task_id).state.is_ended for task_id in ids), 8)  # type: ignore[misc]
            assert time.monotonic() - began < 10, "the tasks waited for the frozen server"
            eventually(lambda: "queue default/1" in worker.log)
            assert worker.health()["status"] != "down"
        finally:
            os.kill(frozen, signal.SIGCONT)
        for user in there:
            queue.push(noop(user))
        eventually(lambda: finished(queue) == len(USERS) + 3 * len(here) + len(there))


def test_tasks_are_kept_when_the_servers_are_stopped_and_started(
    queue: FairQueue, url: str, directories: list[Path], settings: Settings
) -> None:
    settings.FAIRQUE = {"REDIS": {"URL": url}}
    queue.push_batch([noop(user) for user in USERS])

    def run(action: str) -> str:
        output = io.StringIO()
        call_command("fairque_server", action, stdout=output)
        return output.getvalue()

    status = run("status")
    for directory in directories:
        assert f"directory    {directory}\n" in status
    assert run("stop") == "stopped\nstopped\n"
    assert [servers_of(directory) for directory in directories] == [[], []]
    with pytest.raises(CommandError, match=f"no server is running in {directories[1]}") as raised:
        run("status")
    assert raised.value.returncode == 3
    assert queue.get_stats(0).states["queued"] == len(USERS)  # whatever needs a server starts it
    assert run("start") == "".join(
        f"was running already, listening on {directory / 's.sock'}\n" for directory in directories
    )
    assert run("restart").count("restarted, listening on") == 2
    assert queue.get_stats(0).states["queued"] == len(USERS)


def test_the_number_of_shards_follows_the_setting(url: str, place: Path) -> None:
    config = FairQueueConfig.model_validate({"redis": {"url": url}, "queues": {"small": {"shards": 1}}})
    assert (config.queue_config().shards, config.queue_config("small").shards) == (2, 1)
    assert [server.url for server in config.redis.servers] == [f"embedded://{place}/q", f"embedded://{place}/q-1"]
