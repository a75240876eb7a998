"""A real server of a test's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from django_fairque import task
from django_fairque.tasks import registry
from django_fairque.testing import assert_fair, private_server, run_tasks

if TYPE_CHECKING:
    from django_fairque import FairQueue

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_tasks", {})


def test_tasks_run_on_it_fairly(fairque_server: FairQueue) -> None:
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


def test_sections_can_be_given_and_it_ends_with_its_block(settings: Any) -> None:
    before = settings.FAIRQUE if hasattr(settings, "FAIRQUE") else None
    with private_server(QUEUES={"mail": {}}) as queue:
        assert queue.client.ping()  # type: ignore[attr-defined]
        assert run_tasks("mail") == 0
    assert (settings.FAIRQUE if hasattr(settings, "FAIRQUE") else None) == before
