"""One dead letter in the admin: what is shown of it, what is hidden, and its three ends."""

from __future__ import annotations

import json
import re
from html import unescape
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import quote
from django.contrib.auth.models import Permission, User
from django.urls import reverse

from django_fairque.admin.pages import dead_letters as dead_letter
from django_fairque.admin.site import PAGES
from django_fairque.engine.model.records import TaskState
from tests.admin.dead_letters import bury
from tests.admin.page_reader import led_to
from tests.stored_tasks import replace_payload

if TYPE_CHECKING:
    from django.test import Client

    from django_fairque.engine.queue.queue import FairQueue

pytestmark = pytest.mark.django_db
SECRET = {"order": 7, "api_token": "hunter2"}


def url(entry: str) -> str:
    return reverse("admin:django_fairque_dead_letter", args=[quote(entry)])


def post(client: Client, where: str, **data: Any) -> str:
    answer = client.post(where, data, follow=True)
    assert answer.status_code == 200
    return unescape(answer.content.decode())


def written(text: str) -> str:
    """What is in the textarea; HTML leaves out its first line break."""
    found = re.search(r"<textarea[^>]*>\n(.*?)</textarea>", text, re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture
def operator(client: Client) -> Client:
    user = User.objects.create_user("operator", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_deadletter"))
    client.force_login(user)
    return client


def test_what_is_shown(operator: Client, queue: FairQueue) -> None:
    try:
        raise ValueError("no such address")  # noqa: TRY301 - an error with a traceback
    except ValueError as error:
        entry = bury(queue, error, payload=SECRET)
    text = unescape(operator.get(url(entry)).content.decode())
    for expected in (entry, "acme", "shop.send", "failed", "ValueError: no such address", "w-1", '"order": 7'):
        assert expected in text
    assert "<details open><summary>Traceback</summary>" in text
    assert "Traceback (most recent call last):" in text
    assert "hunter2" not in text
    assert 'name="action"' not in text


def test_one_that_was_never_started(admin_client: Client, queue: FairQueue) -> None:
    from django_fairque.engine.model.task import Task

    queue.push(Task.create("u", 3, None, task_id="late", expires_at=1_000_000.0))
    queue.sweep()
    text = unescape(admin_client.get(url("late~1")).content.decode())
    assert "expired" in text
    assert "late~1" in text


@pytest.mark.parametrize("entry", ["none", "none~1", "a/b?c#d~1"])
def test_one_that_is_not_there(admin_client: Client, queue: FairQueue, entry: str) -> None:
    assert repr(entry) in led_to(admin_client, url(entry), "dead_letters")


@pytest.mark.parametrize("task_id", ["a/b?c&d#e", "..", "_41", "line\nbreak", "%2e%2e", "é \t~3", "nul\0"])
def test_any_id_has_a_page(admin_client: Client, queue: FairQueue, task_id: str) -> None:
    entry = bury(queue, task_id=task_id)
    listed = unescape(
        admin_client.get(reverse("admin:django_fairque_dead_letters"), {"show": "letters"}).content.decode()
    )
    link = re.search(r'<th scope="row"><a href="([^"]+)">', listed)
    assert link is not None
    assert admin_client.get(link[1]).status_code == 200
    post(admin_client, url(entry), action="requeue")
    assert queue.get_task(task_id).state is TaskState.QUEUED
    assert "\0" not in LogEntry.objects.get().object_repr


def test_its_task_is_a_link_for_whoever_may_see_tasks(admin_client: Client, operator: Client, queue: FairQueue) -> None:
    entry = bury(queue)
    link = re.compile(rf'<a href="[^"]*/tasks/[^"]*"><bdi>{entry[:-2]}</bdi></a>')
    has_page = any(page.name == "task" for page in PAGES)
    assert bool(link.search(admin_client.get(url(entry)).content.decode())) is has_page
    assert link.search(operator.get(url(entry)).content.decode()) is None


def test_requeue(admin_client: Client, queue: FairQueue) -> None:
    entry = bury(queue)
    text = post(admin_client, url(entry), action="requeue")
    assert f"Dead letter {entry} requeued" in text
    assert "| Dead letters |" in text
    assert queue.get_task(entry[:-2]).state is TaskState.QUEUED
    assert LogEntry.objects.get().object_repr == f"default: {entry}"


def test_discarding_is_asked_about_first(admin_client: Client, queue: FairQueue) -> None:
    entry = bury(queue)
    assert "Discard this dead letter?" in post(admin_client, url(entry), action="discard")
    assert queue.dlq.count() == 1
    assert f"Dead letter {entry} discarded" in post(admin_client, url(entry), action="discard", confirm="yes")
    assert queue.get_task(entry[:-2]).state is TaskState.CANCELED


@pytest.mark.parametrize("action", ["requeue", "edit", "requeue_edited", "discard"])
def test_each_act_needs_its_permission(operator: Client, queue: FairQueue, action: str) -> None:
    entry = bury(queue, payload=SECRET)
    for confirm in ("", "yes"):
        answer = operator.post(url(entry), {"action": action, "confirm": confirm, "payload": "1"})
        assert answer.status_code == 403
        assert b"hunter2" not in answer.content
    assert queue.dlq.count() == 1


class TestEditing:
    def test_shows_what_is_hidden_and_says_so_in_the_log(self, admin_client: Client, queue: FairQueue) -> None:
        entry = bury(queue, payload=SECRET)
        text = post(admin_client, url(entry), action="edit")
        assert json.loads(written(text)) == SECRET
        assert "secrets and all" in text
        assert LogEntry.objects.get().change_message == f"The payload of {entry} is shown as it is, to be edited"

    def test_one_that_is_no_json_is_shown_as_it_is(self, admin_client: Client, queue: FairQueue, redis: Any) -> None:
        entry = bury(queue)
        replace_payload(redis, entry[:-2], b'{"cut": "off\xff')
        assert "bytes that are not shown" in unescape(admin_client.get(url(entry)).content.decode())
        assert written(post(admin_client, url(entry), action="edit")) == '{"cut": "off\\xff'
        post(admin_client, url(entry), action="requeue_edited", payload='{"cut": "on"}')
        assert queue.get_task(entry[:-2]).payload == {"cut": "on"}

    def test_requeues_with_the_new_payload(self, admin_client: Client, queue: FairQueue) -> None:
        entry = bury(queue, payload=SECRET)
        text = post(admin_client, url(entry), action="requeue_edited", payload='{"order": 8}')
        assert f"Dead letter {entry} requeued with another payload" in text
        assert queue.get_task(entry[:-2]).payload == {"order": 8}
        assert "hunter2" not in LogEntry.objects.get().change_message

    def test_a_null_is_another_payload_too(self, admin_client: Client, queue: FairQueue) -> None:
        entry = bury(queue, payload=SECRET)
        post(admin_client, url(entry), action="requeue_edited", payload="null")
        assert queue.get_task(entry[:-2]).payload is None

    @pytest.mark.parametrize("payload", [{"text": 'a\\b "c"\n\u202e</textarea>'}, [1.5, None, "é\0"], "", 10**30, None])
    def test_what_is_shown_can_be_given_back(self, admin_client: Client, queue: FairQueue, payload: Any) -> None:
        entry = bury(queue, payload=payload)
        answer = admin_client.post(url(entry), {"action": "edit"}).content.decode()
        assert "\u202e" not in answer
        post(admin_client, url(entry), action="requeue_edited", payload=unescape(written(answer)))
        assert queue.get_task(entry[:-2]).payload == payload

    @pytest.mark.parametrize(
        ("payload", "words"),
        [
            ("{'order': 8}", "the payload can't be decoded"),
            ("", "the payload can't be decoded"),
            ("NaN", "NaN is not JSON"),
            ('{"a": 1, "a": 2}', "the key 'a' occurs twice"),
            ('"' + "x" * 1_100_000 + '"', "the limit is"),
        ],
    )
    def test_what_is_no_payload_changes_nothing_and_is_kept(
        self, admin_client: Client, queue: FairQueue, payload: str, words: str
    ) -> None:
        entry = bury(queue)
        answer = admin_client.post(url(entry), {"action": "requeue_edited", "payload": payload})
        text = unescape(answer.content.decode())
        assert words in text
        assert 'aria-invalid="true" aria-describedby="fq-problem"' in text
        assert written(text) == payload
        assert queue.dlq.get(entry).original_task.payload == {"order": 7}
        assert not LogEntry.objects.exists()

    def test_what_is_too_large_for_a_form(
        self, admin_client: Client, queue: FairQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(dead_letter, "EDITABLE_PAYLOAD_MAX_BYTES", 10)
        entry = bury(queue, payload="x" * 10)
        assert "can’t be edited here" in unescape(admin_client.get(url(entry)).content.decode())
        assert "too large to be edited here" in post(admin_client, url(entry), action="edit")

    def test_one_that_has_gone_meanwhile(self, admin_client: Client, queue: FairQueue) -> None:
        entry = bury(queue)
        queue.dlq.requeue(entry)
        for fields in ({"action": "requeue_edited", "payload": "1"}, {"action": "requeue"}, {"action": "edit"}):
            answer = admin_client.post(url(entry), fields, follow=True)
            assert answer.redirect_chain == [(f"{reverse('admin:django_fairque_dead_letters')}?queue=default", 302)]
            assert "was requeued, discarded or forgotten" in answer.content.decode()
        confirmed = {"action": "discard", "confirm": "yes"}
        assert admin_client.post(url(entry), confirmed).status_code == 302
