"""What `Worker` and `AsyncWorker` may be given, and what they say of the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from django_fairque.conf import FairQueueConfig, RedisConfig, WorkerConfig
from django_fairque.engine.model.errors import ConfigurationError
from django_fairque.engine.queue.async_queue import AsyncFairQueue
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.worker import AsyncWorker, Worker
from tests.engine.conftest import task

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_django import Settings
    from redis import Redis

    from tests.servers import Server

Kind = type[Worker | AsyncWorker]
both_kinds = pytest.mark.parametrize("kind", [Worker, AsyncWorker])
NO_HANDLER: list[Any] = []
"""Not callable."""
HANDLED: list[str] = []
"""The payloads of the tasks that ran."""


def handle(payload: str) -> None:
    HANDLED.append(payload)


@pytest.fixture(autouse=True)
def project(server: Server, settings: Settings) -> None:
    settings.FAIRQUE = {"REDIS": {"URL": server.url}, "QUEUES": {"mail": {}}}


@both_kinds
def test_wrong_arguments_of_a_worker_are_named(kind: Kind) -> None:
    with pytest.raises(ConfigurationError, match="at least one queue"):
        kind([])
    with pytest.raises(TypeError, match="no argument 'threads'"):
        kind(threads=3)  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match=r"(?s)- poll_interval: expected .*- lease_seconds: expected "):
        kind(lease_seconds=0, poll_interval=0)
    with pytest.raises(
        ConfigurationError, match="a worker takes a WorkerConfig or a FairQueueConfig in place of queues"
    ):
        kind(RedisConfig())  # type: ignore[arg-type]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"queues": "default"}, "queues: expected a list of queues; got 'default'; did you mean ['default']?"),
    ({"users": "ann"}, "users: expected a list of user ids, or \"*\" for everyone; got 'ann'; did you mean ['ann']?"),
    ({"steal": "ann"}, "steal: expected a list of user ids, or \"*\" for everyone; got 'ann'; did you mean ['ann']?"),
    ({"users": ["ann", ""]}, "users.1: expected a user id: a non-empty text of at most 256 bytes; got ''"),
    ({"users": ["*", "ann"]}, 'users: expected "*" alone or user ids; got "*" and 1 more'),
    ({"users": ["a", "b"], "steal": ["b"]}, "steal: expected users that are not in users; got 'b', who is in both"),
    ({"users": "*", "steal": ["ann"]}, 'steal: expected nothing here, because users is "*" and leaves nobody'),
    ({"users": []}, 'this worker would serve nobody: expected user ids, or "*" for everyone'),
    ({"users": [f"u{n}" for n in range(3001)]}, "users: expected at most 3,000 user ids"),
    ({"concurrency": 0}, "concurrency: expected a whole number from 1 to 1000; got 0"),
    ({"concurrency": True}, "concurrency: expected a whole number from 1 to 1000; got True"),
    ({"lease_seconds": 0}, "lease_seconds: expected a number of seconds greater than 0 and at most 315360000 (ten "),
    ({"poll_interval": 0}, "poll_interval: expected a number of seconds greater than 0"),
    ({"task_timeout": 0}, "task_timeout: expected a number of seconds greater than 0"),
    ({"shutdown_timeout": -1}, "shutdown_timeout: expected a number of seconds from 0"),
    ({"max_tasks": -1}, "max_tasks: expected a whole number of tasks, at least 0 (0: no limit); got -1"),
    ({"max_memory_mb": -1}, "max_memory_mb: expected a whole number of megabytes, at least 0 (0: no limit); got -1"),
    ({"handler": "handle"}, 'handler: expected the dotted path of a callable, such as "shop.tasks.handle"; got'),
    ({"worker_id": ""}, "worker_id: expected a name without spaces and commas; got ''"),
]


@both_kinds
@pytest.mark.parametrize(("arguments", "text"), WRONG, ids=lambda value: str(value) if isinstance(value, dict) else "")
def test_an_invalid_argument_of_a_worker_is_named(kind: Kind, arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        kind(**arguments)
    assert str(caught.value).startswith(text)


@both_kinds
def test_users_may_be_named_as_in_the_configuration(kind: Kind) -> None:
    assert kind(users=["*"]).options.users == "*"
    assert kind(users=["ann"], steal=["*"]).options.steal == "*"
    assert kind(users={"ann": 1}.keys()).options.users == ("ann",)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="because users is"):
        kind(users=["*"], steal=["ann"])


@both_kinds
def test_arguments_of_a_worker_that_are_not_given_come_from_the_settings(kind: Kind, settings: Settings) -> None:
    settings.FAIRQUE = {**settings.FAIRQUE, "WORKER": {"USERS": ["ann"], "LEASE_SECONDS": 20}}
    options = kind(worker_id="me", steal=("bob",), poll_interval=2, max_tasks=0).options
    assert (options.worker_id, options.users, options.steal, options.lease_seconds) == ("me", ("ann",), ("bob",), 20.0)
    assert (options.poll_interval, options.queues, options.burst) == (2.0, ("default",), False)
    with pytest.raises(
        ConfigurationError, match="steal: expected users that are not in users; got 'ann', who is in both"
    ):
        kind(steal=["ann"])


@both_kinds
def test_a_queue_that_is_named_twice_is_served_once(kind: Kind, queue: FairQueue) -> None:
    assert kind(["default", "mail", "default"]).options.queues == ("default", "mail")
    other = FairQueue(queue.client, "mail")
    assert kind([other, "default", other]).options.queues == ("mail", "default")
    with pytest.raises(ConfigurationError, match="two that are called 'mail'"):
        kind([other, "mail"])
    unused: Any = AsyncFairQueue(RedisConfig().create_async_redis_client(), "mail")
    with pytest.raises(ConfigurationError, match="expected names of queues, or FairQueue objects; got <AsyncFairQueue"):
        kind([unused])


def test_an_invalid_payload_handler_is_named() -> None:
    for path in ("no.such", f"{__name__}.nothing", f"{__name__}.NO_HANDLER"):
        with pytest.raises(ConfigurationError, match="handler: "):
            Worker(handler=path)


@both_kinds
def test_a_worker_accepts_another_configuration_than_the_settings(kind: Kind) -> None:
    config = WorkerConfig(id="w", users=["ann"], steal=["*"], queues=["mail"], lease_seconds=20)
    options = kind(config, task_timeout=7).options
    assert options.worker_id.startswith("w-")
    assert (options.users, options.steal, options.queues) == (("ann",), "*", ("mail",))
    assert (options.lease_seconds, options.task_timeout) == (20, 7)


@both_kinds
def test_workers_accept_the_argument_names_of_the_first_design(kind: Kind) -> None:
    options = kind(
        id="worker-001",
        assigned_users=["user:1"],
        steal_targets=["user:2"],
        poll_interval_seconds=1.0,
        task_timeout_seconds=300.0,
        max_concurrent_tasks=10,
        graceful_shutdown_timeout=20.0,
    ).options
    assert (options.worker_id, options.users, options.steal) == ("worker-001", ("user:1",), ("user:2",))
    assert (options.poll_interval, options.task_timeout) == (1, 300)
    assert (options.concurrency, options.shutdown_timeout) == (10, 20)
    with pytest.raises(ConfigurationError, match="users: given twice"):
        kind(users=["a"], assigned_users=["b"])
    with pytest.raises(ConfigurationError, match="worker_id: expected a name without spaces and commas"):
        kind(id="")


FILE_OF_A_WORKER = """
redis: {{url: "{url}"}}
worker: {{id: "worker-001", assigned_users: ["paid"], steal_targets: ["free"], queues: [mail]}}
queue: {{default_max_retries: 1}}
queues: {{mail: {{}}}}
"""


@pytest.fixture
def config(server: Server, redis: Redis, settings: Settings, tmp_path: Path) -> FairQueueConfig:
    """A configuration whose server is not the one of the settings."""
    settings.FAIRQUE = {"REDIS": {"URL": "unix:///nonexistent/s.sock"}}
    path = tmp_path / "fairque.yaml"
    path.write_text(FILE_OF_A_WORKER.format(url=server.url))
    return FairQueueConfig.from_yaml(path)


def test_a_worker_serves_the_queues_of_its_configuration(config: FairQueueConfig) -> None:
    client = config.create_redis_client()
    queue = FairQueue(client, "mail", config.queue_config("mail"))
    queue.push_batch([task(user, payload=user) for user in ("free", "paid", "other")])
    worker = Worker(config, concurrency=1, burst=True, handler=f"{__name__}.handle")
    assert worker.options.worker_id.startswith("worker-001-")
    HANDLED.clear()
    worker.run(handle_signals=False)
    assert HANDLED == ["paid", "free"]
    assert worker.queues[0].config.default_max_retries == 1


async def test_an_async_worker_serves_the_queues_of_its_configuration(config: FairQueueConfig) -> None:
    client = config.create_async_redis_client()
    try:
        await AsyncFairQueue(client, "mail", config.queue_config("mail")).push(task("paid", payload="paid"))
        HANDLED.clear()
        await AsyncWorker(config, burst=True, handler=f"{__name__}.handle").run(handle_signals=False)
        assert HANDLED == ["paid"]
    finally:
        await client.aclose()
