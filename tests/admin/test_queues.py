"""All declared queues in one table; pausing, resuming and purging them."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.urls import reverse

from django_fairque.admin.pages import base as purging
from django_fairque.conf import get_queue
from django_fairque.engine.model.task import Task
from tests.admin.page_reader import said
from tests.counting import counted

if TYPE_CHECKING:
    from django.test import Client
    from pytest_django import Settings
    from redis import Redis

    from django_fairque.engine.queue.queue import FairQueue

pytestmark = pytest.mark.django_db

URL = "admin:django_fairque_queues"


def shown(client: Client, **query: str) -> str:
    answer = client.get(reverse(URL), query)
    assert answer.status_code == 200
    return content(answer)


def content(answer: Any) -> str:
    text: str = answer.content.decode()
    return text[text.index('id="fq-content"') :]


def row(html: str, name: str) -> str:
    """What the table says of a queue."""
    found = next(each for each in re.findall(r"<tr>.*?</tr>", html, re.DOTALL) if f">{name}</a>" in each)
    return said(found)


def act(client: Client, action: str, queue: str = "mail", **fields: str) -> Any:
    url = f"{reverse(URL)}?queue={queue}"
    return client.post(url, {"action": action, **fields}, follow=True)


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


def test_each_queue_has_a_row(admin_client: Client, queue: FairQueue) -> None:
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


def test_many_queues_are_paged(admin_client: Client, redis: Redis, settings: Settings, queue: FairQueue) -> None:
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
    first, second = LogEntry.objects.order_by("id")
    assert (first.object_repr, second.object_repr) == ("mail", "mail")
    assert "is paused" in first.get_change_message()


def test_a_pause_has_a_note_and_an_end(admin_client: Client, queue: FairQueue, mail: FairQueue) -> None:
    html = content(act(admin_client, "pause", note="<i>release", pause_for="30m"))
    assert row(html, "mail").startswith("mail paused ends in")
    assert "&lt;i&gt;release" in html
    stats = mail.get_stats(0)
    assert stats.pause is not None
    assert stats.pause.until == pytest.approx(time.time() + 1800, abs=60)
    assert "Note: &lt;i&gt;release" in content(admin_client.get("/admin/django_fairque/queue/?queue=mail"))


def test_a_purge_is_asked_first(admin_client: Client, mail: FairQueue) -> None:
    html = content(act(admin_client, "purge"))
    assert "Purge queue mail?" in html
    assert "7 tasks wait" in html
    assert 'name="confirm" value="yes"' in html
    assert "data-refresh" not in html, "a question must not be replaced by the table"
    assert waiting(mail) == 7
    assert not LogEntry.objects.exists()


@pytest.mark.parametrize("confirm", ["", "no", "YES"])
def test_only_yes_confirms(admin_client: Client, mail: FairQueue, confirm: str) -> None:
    assert "Purge queue mail?" in content(act(admin_client, "purge", confirm=confirm))
    assert waiting(mail) == 7


def test_a_confirmed_purge_cancels_what_waits(admin_client: Client, queue: FairQueue, mail: FairQueue) -> None:
    queue.push(Task.create("a", 3, 1))
    answer = act(admin_client, "purge", confirm="yes")
    assert "7 tasks canceled." in answer.content.decode()
    assert row(content(answer), "mail").startswith("mail no worker 0 – 1 0")
    assert waiting(mail) == 0
    assert waiting(queue) == 1
    (entry,) = LogEntry.objects.all()
    assert (entry.object_repr, entry.get_change_message()) == ("mail", "7 tasks canceled.")


def test_a_large_purge_goes_on_in_slices(
    admin_client: Client, mail: FairQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(purging, "PURGES_PER_REQUEST", 3)
    asked = content(act(admin_client, "purge"))
    assert "At most 3 tasks are canceled at once" in asked
    answer = act(admin_client, "purge", confirm="yes")
    assert "3 tasks canceled." in answer.content.decode()
    assert "4 tasks wait" in content(answer), "the question whether to go on"
    act(admin_client, "purge", confirm="yes")
    answer = act(admin_client, "purge", confirm="yes")
    assert "1 task canceled." in answer.content.decode()
    assert "Purge queue" not in content(answer)
    assert waiting(mail) == 0


@pytest.mark.parametrize(
    ("has", "may"), [("view_queue", set()), ("change_queue", {"pause", "resume"}), ("delete_queue", {"purge"})]
)
def test_each_action_has_its_permission(client: Client, mail: FairQueue, has: str, may: set[str]) -> None:
    staff = User.objects.create_user("staff", password="x", is_staff=True)
    staff.user_permissions.add(*Permission.objects.filter(codename__in=["view_queue", has]))
    client.force_login(staff)
    html = shown(client)
    assert {each for each in ("pause", "purge") if f'value="{each}"' in html} == may - {"resume"}
    for action in ("pause", "resume", "purge"):
        status = act(client, action, confirm="yes").status_code
        assert status == (200 if action in may else 403), action
    assert mail.is_paused() is False
    assert waiting(mail) == (0 if "purge" in may else 7)
    if "purge" not in may:
        assert act(client, "purge").status_code == 403


def test_an_unknown_queue_is_not_found(admin_client: Client, queue: FairQueue) -> None:
    for action in ("pause", "purge"):
        assert act(admin_client, action, queue="nowhere").status_code == 404
