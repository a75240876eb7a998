"""One dead letter in the admin: what is shown of it, what is hidden, and its three ends."""

from __future__ import annotations

import json
import re
from functools import partial
from html import unescape
from typing import Any

import pytest

from django_fairque.admin.pages import dead_letters as dead_letter
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.model.task import Task
from django_fairque.models import AuditEntry
from tests.admin.dead_letters import bury
from tests.admin.page_reader import allow, led_to, log_in, page_url, post, read
from tests.fixture_types import Client, FairQueue
from tests.stored_tasks import replace_payload

pytestmark = pytest.mark.django_db
SECRET = {"order": 7, "api_token": "hunter2"}


url = partial(page_url, "dead_letter")


def act(client: Client, entry: str, action: str, **fields: Any) -> str:
    return unescape(post(client, url(entry), action=action, **fields).content.decode())


def written(text: str) -> str:
    """Return the content of the textarea; HTML leaves out its first line break."""
    found = re.search(r"<textarea[^>]*>\n(.*?)</textarea>", text, re.DOTALL)
    assert found is not None
    return found[1]


def test_a_dead_letter_is_shown_without_secrets(client: Client, queue: FairQueue) -> None:
    try:
        raise ValueError("no such address")  # noqa: TRY301 - an error with a traceback
    except ValueError as error:
        entry = bury(queue, error, payload=SECRET)
    user = log_in(client, "view_deadletter")
    text = unescape(read(client, url(entry)))
    for expected in (entry, "acme", "shop.send", "failed", "ValueError: no such address", "w-1", '"order": 7'):
        assert expected in text
    assert "<details open><summary>Traceback</summary>" in text
    assert "Traceback (most recent call last):" in text
    assert "hunter2" not in text
    link = re.compile(rf'<a href="[^"]*/tasks/[^"]*"><bdi>{entry[:-2]}</bdi></a>')
    assert not link.search(text)
    allow(user, "view_task")
    assert link.search(read(client, url(entry)))


def test_a_task_that_expired_before_its_start_has_a_page(admin_client: Client, queue: FairQueue) -> None:
    queue.push(Task.create("u", 3, None, task_id="late", expires_at=1_000_000.0))
    queue.sweep()
    text = read(admin_client, url("late~1"))
    assert "expired" in text
    assert "late~1" in text


@pytest.mark.parametrize("entry", ["none", "none~1", "a/b?c#d~1"])
def test_an_unknown_dead_letter_leads_to_the_list(admin_client: Client, queue: FairQueue, entry: str) -> None:
    assert repr(entry) in led_to(admin_client, url(entry), "dead_letters")


@pytest.mark.parametrize("task_id", ["a/b?c&d#e", "..", "_41", "line\nbreak", "%2e%2e", "é \t~3", "nul\0"])
def test_a_dead_letter_of_any_id_is_opened_and_requeued(admin_client: Client, queue: FairQueue, task_id: str) -> None:
    entry = bury(queue, task_id=task_id)
    listed = unescape(read(admin_client, page_url("dead_letters", show="letters")))
    link = re.search(r'<th scope="row"><a href="([^"]+)">', listed)
    assert link is not None
    assert admin_client.get(link[1]).status_code == 200
    act(admin_client, entry, "requeue")
    assert queue.get_task(task_id).state is TaskState.QUEUED
    assert "\0" not in str(AuditEntry.objects.get())


def test_a_dead_letter_is_requeued(admin_client: Client, queue: FairQueue) -> None:
    entry = bury(queue)
    text = act(admin_client, entry, "requeue")
    assert f"Dead letter {entry} requeued" in text
    assert "| Dead letters |" in text
    assert queue.get_task(entry[:-2]).state is TaskState.QUEUED
    assert str(AuditEntry.objects.get()) == f"default: {entry}"


def test_discarding_a_dead_letter_is_confirmed_first(admin_client: Client, queue: FairQueue) -> None:
    entry = bury(queue)
    assert "Discard this dead letter?" in act(admin_client, entry, "discard")
    assert queue.dlq.count() == 1
    assert f"Dead letter {entry} discarded" in act(admin_client, entry, "discard", confirm="yes")
    assert queue.get_task(entry[:-2]).state is TaskState.CANCELED


def test_editing_shows_the_hidden_values_and_is_logged(admin_client: Client, queue: FairQueue) -> None:
    entry = bury(queue, payload=SECRET)
    text = act(admin_client, entry, "edit")
    assert json.loads(written(text)) == SECRET
    assert "secrets and all" in text
    assert AuditEntry.objects.get().text == f"The payload of {entry} is shown as it is, to be edited"


def test_a_payload_that_is_no_json_is_edited_as_its_text(admin_client: Client, queue: FairQueue, redis: Any) -> None:
    entry = bury(queue)
    replace_payload(redis, entry[:-2], b'{"cut": "off\xff')
    assert "bytes that are not shown" in unescape(admin_client.get(url(entry)).content.decode())
    assert written(act(admin_client, entry, "edit")) == '{"cut": "off\\xff'
    act(admin_client, entry, "requeue_edited", payload='{"cut": "on"}')
    assert queue.get_task(entry[:-2]).payload == {"cut": "on"}


def test_a_dead_letter_is_requeued_with_a_new_payload(admin_client: Client, queue: FairQueue) -> None:
    entry = bury(queue, payload=SECRET)
    text = act(admin_client, entry, "requeue_edited", payload='{"order": 8}')
    assert f"Dead letter {entry} requeued with another payload" in text
    assert queue.get_task(entry[:-2]).payload == {"order": 8}
    assert "hunter2" not in AuditEntry.objects.get().text


@pytest.mark.parametrize("payload", [{"text": 'a\\b "c"\n\u202e</textarea>'}, [1.5, None, "é\0"], "", 10**30, None])
def test_a_payload_that_is_shown_can_be_sent_back(admin_client: Client, queue: FairQueue, payload: Any) -> None:
    entry = bury(queue, payload=payload)
    answer = admin_client.post(url(entry), {"action": "edit"}).content.decode()
    assert "\u202e" not in answer
    act(admin_client, entry, "requeue_edited", payload=unescape(written(answer)))
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
def test_an_invalid_payload_changes_nothing_and_stays_in_the_form(
    admin_client: Client, queue: FairQueue, payload: str, words: str
) -> None:
    entry = bury(queue)
    answer = admin_client.post(url(entry), {"action": "requeue_edited", "payload": payload})
    text = unescape(answer.content.decode())
    assert words in text
    assert 'aria-invalid="true" aria-describedby="fq-problem"' in text
    assert written(text) == payload
    assert queue.dlq.get(entry).original_task.payload == {"order": 7}
    assert not AuditEntry.objects.exists()


def test_a_large_payload_is_not_edited(admin_client: Client, queue: FairQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letter, "EDITABLE_PAYLOAD_MAX_BYTES", 10)
    entry = bury(queue, payload="x" * 10)
    assert "can’t be edited here" in unescape(admin_client.get(url(entry)).content.decode())
    assert "too large to be edited here" in act(admin_client, entry, "edit")


def test_a_dead_letter_that_is_gone_leads_to_the_list(admin_client: Client, queue: FairQueue) -> None:
    entry = bury(queue)
    queue.dlq.requeue(entry)
    for fields in ({"action": "requeue_edited", "payload": "1"}, {"action": "requeue"}, {"action": "edit"}):
        answer = admin_client.post(url(entry), fields, follow=True)
        assert answer.redirect_chain == [(page_url("dead_letters", queue="default"), 302)]
        assert "was requeued, discarded or forgotten" in answer.content.decode()
    confirmed = {"action": "discard", "confirm": "yes"}
    assert admin_client.post(url(entry), confirmed).status_code == 302
