"""The page of limits by key, and limits on the page of a task."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from django_fairque import Concurrency, task
from django_fairque.engine.model.limits import TaskLimit
from django_fairque.engine.model.task import Task
from django_fairque.models import AuditEntry
from django_fairque.tasks import registry
from tests.admin.page_reader import content_of, log_in, messages_of, page_url, post, read, words_of
from tests.fixture_types import Client, FairQueue

pytestmark = pytest.mark.django_db

HOSTILE = '<script>alert("1")</script>'
url = partial(page_url, "limits")


@pytest.fixture
def waiting(queue: FairQueue) -> str:
    """The id of a task that waits at a limit, of which another one runs."""
    limits = [TaskLimit(HOSTILE, 1, 600_000, 5), TaskLimit("mine", 2, is_of_user=True)]
    ids = [queue.push(Task.create("ann", 3, None, limits=limits)).task_id for _ in range(2)]
    assert queue.pop("w")
    return ids[1]


def lines(client: Client, **query: str) -> list[str]:
    """The words of each row of the table."""
    return [words_of(row) for row in content_of(read(client, url(**query))).split("<tbody>")[1].split("</tr>")[:-1]]


def act(client: Client, action: str, **fields: Any) -> Any:
    return post(client, url(), action=action, confirm="yes", **fields)


def test_limits_are_listed_with_their_tasks_and_values(admin_client: Client, queue: FairQueue, waiting: str) -> None:
    assert lines(admin_client) == [
        f"{HOSTILE} all 1 1 at most 1 at once, rate 100/m, burst 5 – Close Open by itself After"
    ]
    assert HOSTILE not in read(admin_client, url())
    assert lines(admin_client, limit="mine", user="ann")[0].startswith("mine ann 0 1 at most 2 at once")


def test_the_page_says_that_no_task_waits_at_a_limit(admin_client: Client, queue: FairQueue) -> None:
    assert "No task of this queue waits at a limit by key" in read(admin_client, url())


def test_a_key_that_is_too_long_is_refused(admin_client: Client, queue: FairQueue) -> None:
    assert "the key of a limit must be a non-empty string" in read(admin_client, url(limit="x" * 257))


def test_closing_a_limit_is_confirmed_first_and_recorded(admin_client: Client, queue: FairQueue, waiting: str) -> None:
    answer = post(admin_client, url(), action="close", limit=HOSTILE)
    assert "starts on any worker until it opens" in words_of(answer.content.decode())
    assert not queue.limit(HOSTILE).stats().is_closed
    assert f"Limit {HOSTILE} is closed." in messages_of(act(admin_client, "close", limit=HOSTILE))
    assert queue.limit(HOSTILE).stats().is_closed
    assert " closed Open" in lines(admin_client)[0]
    assert HOSTILE in str(AuditEntry.objects.get())
    assert f"Limit {HOSTILE} is open." in messages_of(act(admin_client, "open", limit=HOSTILE))
    assert not queue.limit(HOSTILE).stats().is_closed


def test_a_limit_is_closed_for_a_time(admin_client: Client, queue: FairQueue) -> None:
    act(admin_client, "close", limit="k", user="ann", close_for="2h")
    stats = queue.limit("k", "ann").stats()
    assert stats.closed_until
    assert "closed opens in " in lines(admin_client)[0]
    assert "expected an age" in messages_of(act(admin_client, "close", limit="k", close_for="soon"))
    assert not queue.limit("k").stats().is_closed


def test_seeing_limits_does_not_permit_to_close_them(client: Client, queue: FairQueue, waiting: str) -> None:
    log_in(client, "view_user")
    assert "Close" not in lines(client)[0]
    assert client.post(url(), {"action": "close", "limit": HOSTILE, "confirm": "yes"}).status_code == 403
    assert not queue.limit(HOSTILE).stats().is_closed


def test_the_page_of_a_task_has_its_limits_and_a_link(admin_client: Client, queue: FairQueue, waiting: str) -> None:
    html = content_of(read(admin_client, page_url("task", waiting)))
    assert f"1 of 1 task of limit {HOSTILE} runs. The limit" in words_of(html)
    assert f"Limits {HOSTILE} at most 1 at once, rate 100/m, burst 5 mine at most 2 at once" in words_of(html)
    assert "limit=mine&amp;user=ann" in html


def test_the_page_of_a_user_counts_tasks_at_limits(admin_client: Client, queue: FairQueue, waiting: str) -> None:
    assert "wait at limits 1" in words_of(read(admin_client, page_url("users", user="ann")))


def test_a_task_that_runs_again_has_its_limits(admin_client: Client, queue: FairQueue, waiting: str) -> None:
    queue.cancel(waiting)
    post(admin_client, page_url("task", waiting), action="run_again", payload="null")
    (again,) = queue.tasks("queued")
    assert again.limits == queue.get_task(waiting).limits != ()


def test_a_task_that_runs_again_with_another_payload_has_the_keys_of_its_arguments(
    admin_client: Client, queue: FairQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_tasks", {})

    @task(name="fetch", limits=[Concurrency("box:{box}", 3)])
    def fetch(box: int) -> None: ...

    task_id = queue.push(fetch.build((7,), {})).task_id
    queue.cancel(task_id)
    post(admin_client, page_url("task", task_id), action="run_again", payload='{"args": [8], "kwargs": {}}')
    (again,) = queue.tasks("queued")
    assert again.limits == (TaskLimit("box:8", 3),)
