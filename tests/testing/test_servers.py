"""A real server of a test's own."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from django_fairque import task
from django_fairque.conf import get_config
from django_fairque.embedded import locks
from django_fairque.engine.model.errors import FairQueueError, RedisConnectionError
from django_fairque.tasks import registry
from django_fairque.testing import assert_fair, private_server, run_tasks

if TYPE_CHECKING:
    from django_fairque import FairQueue

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_tasks", {})


def test_tasks_on_a_private_server_run_fairly(fairque_server: FairQueue) -> None:
    started: list[str] = []

    @task(name="work", user="user")
    def work(user: str) -> None:
        started.append(user)

    for user in "aaabbbc":
        work.enqueue(user)
    assert run_tasks() == 7
    assert sorted(started) == list("aaabbbc")
    assert_fair(started)
    assert fairque_server.check_invariants() == []


def test_a_private_server_takes_settings_and_ends_with_its_block(settings: Any) -> None:
    before = settings.FAIRQUE if hasattr(settings, "FAIRQUE") else None
    with private_server(QUEUES={"mail": {}}) as queue:
        assert queue.client.ping()  # type: ignore[attr-defined]
        assert run_tasks("mail") == 0
    assert (settings.FAIRQUE if hasattr(settings, "FAIRQUE") else None) == before


def test_a_private_server_is_used_even_if_the_environment_names_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRQUE_REDIS__URL", "redis://127.0.0.1:1/0")
    with private_server() as queue:
        assert queue.client.ping()  # type: ignore[attr-defined]
    assert get_config().redis.url == "redis://127.0.0.1:1/0"


def test_threads_that_still_use_an_ended_private_server_start_no_other(fairque_server: FairQueue) -> None:
    """A worker that has just ended may wait on it; it must not be started again in a directory that is being removed."""
    calls: list[threading.Thread] = []
    over = threading.Event()

    def use(queue: FairQueue) -> None:
        while not over.is_set():
            with suppress(FairQueueError):
                queue.get_stats()

    try:
        for _ in range(3):
            with private_server() as queue:
                calls += [threading.Thread(target=use, args=(queue,)) for _ in range(3)]
                for call in calls[-3:]:
                    call.start()
                pool: Any = queue.client.connection_pool  # type: ignore[attr-defined]
                directory = Path(pool.connection_kwargs["embedded_directory"])
            with pytest.raises(RedisConnectionError, match="has been ended for good"):
                queue.get_stats()
            assert not directory.parent.exists()
            assert locks.find_orphans(directory) == []
    finally:
        over.set()
        for call in calls:
            call.join()
