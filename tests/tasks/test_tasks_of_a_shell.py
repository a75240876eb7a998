"""A task that is declared in a script or a shell is refused where it is sent: no worker can import it."""

from __future__ import annotations

from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction

from django_fairque import TaskUsageError
from django_fairque.tasks import sending
from django_fairque.testing import capture_tasks, eager
from tests.fixture_types import FairQueue, Redis

pytestmark = pytest.mark.django_db(transaction=True)

SCRIPT = """
from django_fairque import task
@task
def f(): return 1
@task(name="reports.send")
def named(): ...
"""


@pytest.fixture(params=[{"__name__": "__main__"}, {"__name__": "__console__"}, {}], ids=["script", "console", "shell"])
def names(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run the script and return the names that it defines."""
    monkeypatch.setattr(sending, "unimportable", set())
    found: dict[str, Any] = dict(request.param)
    exec(SCRIPT, found)
    return found


def test_a_task_of_a_script_is_refused_where_it_is_sent(queue: FairQueue, redis: Redis, names: dict[str, Any]) -> None:
    f = names["f"]
    calls = [
        f.enqueue,
        async_to_sync(f.aenqueue),
        lambda: f.enqueue_many([((), {})]),
        (f.s() >> f.s()).enqueue,
        lambda: queue.schedules.add("s", task=f, every=60),
        lambda: queue.schedules.add("s", task=f.s(), every=60),
    ]
    for call in calls:
        with pytest.raises(TaskUsageError, match=r"declared in a script or a shell, .*: move it into a module"):
            call()
    with pytest.raises(TaskUsageError, match="declared in a script"), transaction.atomic():
        f.enqueue()
    assert redis.dbsize() == 0


def test_a_task_of_a_script_runs_where_nothing_is_sent(queue: FairQueue, names: dict[str, Any]) -> None:
    assert names["f"]() == 1
    with eager():
        assert names["f"].enqueue().result() == 1
    with capture_tasks() as captured:
        names["f"].enqueue()
    assert len(captured) == 1


def test_a_task_with_the_name_of_a_worker_s_is_sent(queue: FairQueue, names: dict[str, Any]) -> None:
    assert queue.get_task(names["named"].enqueue().id).name == "reports.send"
