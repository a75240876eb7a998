"""All declared queues in one table; pausing, resuming and purging them."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from django_fairque.admin.pages import base as purging
from django_fairque.conf import get_queue
from django_fairque.engine.model.task import Task
from django_fairque.models import AuditEntry
from tests.admin.page_reader import content_of, log_in, page_url, read, words_of
from tests.counting import counted
from tests.fixture_types import Client, FairQueue, Redis, Settings

pytestmark = pytest.mark.django_db


def shown(client: Client, **query: str) -> str:
    return content_of(read(client, page_url("queues", **query)))


def content(answer: Any) -> str:
    return content_of(answer.content.decode())


def row(html: str, name: str) -> str:
    """Return the text of a queue's row in the table."""
    found = next(row for row in re.findall(r"<tr>.*?</tr>", html, re.DOTALL) if f">{name}</a>" in row)
    return words_of(found)


def act(client: Client, action: str, queue: str = "mail", **fields: str) -> Any:
    return client.post(page_url("queues", queue=queue), {"action": action, **fields}, follow=True)


@pytest.fixture
def mail(queue: FairQueue) -> FairQueue:
    """Another queue, with tasks that wait in every way and one that runs."""
    mail = get_queue("mail")
    mail.push_batch([Task.create(f"u{n % 3}", 3, n, task_id=f"t{n}") for n in range(6)])
    mail.push_batch(
        [Task.create("u", 3, 1, execute_after=time.time() + 900), Task.create("u", 3, 1, depends_on=["t5"])]
    )
    mail.pop("w", lease=900)
    return mail


def waiting(queue: FairQueue) -> int:
    states = queue.get_stats(0).states
    return states["queued"] + states["scheduled"] + states["deferred"]


def test_each_queue_has_a_row_with_its_figures(admin_client: Client, queue: FairQueue) -> None:
    now = time.time()
    queue.push_batch([Task.create("a", 6, 1), *(Task.create("b", 2, n) for n in range(1200))], now=now - 190)
    for lease in queue.pop_batch(50, "w", lease=900, now=now - 186):
        queue.finish(lease, took=0.1, now=now - 180)
    queue.pop_batch(2, "w", lease=900, now=now - 60)
    queue.heartbeat("w", {}, ttl=900, now=now)
    get_queue("mail").pause()
    html = shown(admin_client)
    text = row(html, "default")
    assert text.startswith("default works 1,149 LOW 1,149 2 0 about 4 s about 4 s about 4 s 10 /min")
    assert "Finished in the last hour: at most 50 /min, 0 /min at last" in text
    assert row(html, "mail").startswith("mail paused 0 – 0 0 – – – 0 /s")
    assert 'href="/admin/django_fairque/queue/overview/?queue=mail"' in html


def test_the_table_of_queues_has_pages(
    admin_client: Client, redis: Redis, settings: Settings, queue: FairQueue
) -> None:
    names = [f"q{n:02}" for n in range(45)]
    settings.FAIRQUE = {**settings.FAIRQUE, "QUEUES": {name: {} for name in names}}
    found: list[str] = []
    query: dict[str, str] = {}
    for _page in range(3):
        html = shown(admin_client, **query)
        found += re.findall(r'fq-class"><a href="[^"]*">([^<]*)</a>', html)
        following = re.search(r'href="[^"]*after=(\w+)" rel="next"', html)
        query = {"after": following.group(1)} if following else {}
    assert found == ["default", *names]
    assert not query
    assert ">default</a>" in shown(admin_client, after="nowhere"), "from the beginning"
    assert counted(redis, lambda: shown(admin_client))["hgetall"]["calls"] <= 20 * 61


def test_a_queue_is_paused_and_resumed(admin_client: Client, queue: FairQueue, mail: FairQueue) -> None:
    html = content(act(admin_client, "pause"))
    assert mail.is_paused()
    assert not queue.is_paused()
    assert row(html, "mail").startswith("mail paused")
    assert 'aria-label="Resume mail"' in html
    assert 'aria-label="Pause default"' in html
    answer = act(admin_client, "resume")
    assert not mail.is_paused()
    assert "Queue mail goes on." in answer.content.decode()
    first, second = AuditEntry.objects.order_by("id")
    assert (str(first), str(second)) == ("mail", "mail")
    assert "is paused" in first.text


def test_a_pause_may_have_a_note_and_an_end(admin_client: Client, queue: FairQueue, mail: FairQueue) -> None:
    html = content(act(admin_client, "pause", note="<i>release", pause_for="30m"))
    assert row(html, "mail").startswith("mail paused ends in")
    assert "&lt;i&gt;release" in html
    stats = mail.get_stats(0)
    assert stats.pause is not None
    assert stats.pause.until == pytest.approx(time.time() + 1800, abs=60)
    assert "Note: &lt;i&gt;release" in content(admin_client.get("/admin/django_fairque/queue/?queue=mail"))


@pytest.mark.parametrize("confirm", [None, "", "no", "YES"])
def test_a_queue_is_not_purged_without_a_confirmation(
    admin_client: Client, mail: FairQueue, confirm: str | None
) -> None:
    html = content(act(admin_client, "purge", **({} if confirm is None else {"confirm": confirm})))
    for words in ("Purge queue mail?", "7 tasks wait", 'name="confirm" value="yes"'):
        assert words in html
    assert "data-refresh" not in html, "a question must not be replaced by the table"
    assert waiting(mail) == 7
    assert not AuditEntry.objects.exists()


def test_a_confirmed_purge_cancels_the_waiting_tasks(admin_client: Client, queue: FairQueue, mail: FairQueue) -> None:
    queue.push(Task.create("a", 3, 1))
    answer = act(admin_client, "purge", confirm="yes")
    assert "7 tasks canceled." in answer.content.decode()
    assert row(content(answer), "mail").startswith("mail no worker 0 – 1 0")
    assert waiting(mail) == 0
    assert waiting(queue) == 1
    (entry,) = AuditEntry.objects.all()
    assert (str(entry), entry.text) == ("mail", "7 tasks canceled.")


def test_a_large_purge_runs_in_slices(admin_client: Client, mail: FairQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(purging, "PURGES_PER_REQUEST", 3)
    question = content(act(admin_client, "purge"))
    assert "At most 3 tasks are canceled at once" in question
    answer = act(admin_client, "purge", confirm="yes")
    assert "3 tasks canceled." in answer.content.decode()
    assert "4 tasks wait" in content(answer), "the question whether to go on"
    act(admin_client, "purge", confirm="yes")
    answer = act(admin_client, "purge", confirm="yes")
    assert "1 task canceled." in answer.content.decode()
    assert "Purge queue" not in content(answer)
    assert waiting(mail) == 0


@pytest.mark.parametrize(("permission", "may"), [("change_queue", {"pause", "resume"}), ("delete_queue", {"purge"})])
def test_pause_and_purge_have_own_permissions(client: Client, mail: FairQueue, permission: str, may: set[str]) -> None:
    log_in(client, "view_queue", permission)
    html = shown(client)
    assert {action for action in ("pause", "purge") if f'value="{action}"' in html} == may - {"resume"}
    for action in ("pause", "resume", "purge"):
        assert act(client, action, confirm="yes").status_code == (200 if action in may else 403), action
    assert (mail.is_paused(), waiting(mail)) == (False, 0 if "purge" in may else 7)
