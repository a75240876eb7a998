"""The page of acts on many tasks, and their start from the page of dead letters."""

from __future__ import annotations

import re
import time
from functools import partial
from html import unescape

import pytest

from django_fairque.audit import acting_as
from django_fairque.conf.current import get_queue
from django_fairque.engine.acts.moves import Mover
from django_fairque.engine.model.task import Task
from django_fairque.models import AuditEntry
from django_fairque.tasks.signing import check, is_genuine
from tests.admin.dead_letters import bury
from tests.admin.page_reader import allow, log_in, messages_of, page_url, post, read, words_of
from tests.admin.test_dead_letters import hidden
from tests.fixture_types import Client, FairQueue
from tests.leases import pop

pytestmark = pytest.mark.django_db

url = partial(page_url, "acts")


def advance(queue: FairQueue) -> None:
    """Advance the acts five times, a second apart, which their pace allows."""
    for number in range(5):
        queue.acts.advance(now=time.time() + number)


def test_the_dead_letters_that_match_are_discarded_by_an_act_and_restored(
    admin_client: Client, queue: FairQueue
) -> None:
    letters = [bury(queue, f"no order {number}") for number in range(3)]
    bury(queue, user_id="bolt")
    where = page_url("dead_letters", user_id="acme")
    question = unescape(post(admin_client, where, action="discard_all").content.decode())
    form = {**hidden(question), "as_act": "yes", "pace": "100", "trial": "yes", "note": "<b>old</b>"}
    page = post(admin_client, where, **form)
    (act,) = queue.acts.list()
    assert messages_of(page) == f"Act {act.id} is started; workers carry it out"
    advance(queue)
    text = read(admin_client, url())
    assert "&lt;b&gt;old&lt;/b&gt;" in text
    assert "1 changed" in words_of(text)
    assert (act.actor, act.pace, act.state, queue.dlq.count()) == ("admin", 100, "trial", 3)
    post(admin_client, url(), action="go_on", act=act.id)
    queue.acts.stop(act.id)
    assert "is stopped" in messages_of(post(admin_client, url(), action="stop", act=act.id))
    assert "Yes, undo it" in post(admin_client, url(), action="undo", act=act.id).content.decode()
    post(admin_client, url(), action="undo", act=act.id, confirm="yes")
    advance(queue)
    assert "1 restored" in words_of(read(admin_client, url()))
    assert set(letters) <= {entry.entry_id for entry in queue.dlq.list().items}
    entries = AuditEntry.objects.filter(kind="act", subject=act.id).order_by("pk")
    assert [entry.act for entry in entries] == ["discard", "go on", "stop", "undo"]
    assert entries[0].after["tasks"] == "user_id acme"


def test_the_dead_letters_that_match_are_moved_to_the_chosen_queue(admin_client: Client, queue: FairQueue) -> None:
    bury(queue)
    bury(queue, user_id="bolt")
    where = page_url("dead_letters", user_id="acme")
    question = unescape(post(admin_client, where, action="move_all").content.decode())
    assert 'name="as_act"' in question
    assert 'class="button"></button>' not in question
    form = hidden(question)
    assert "There is no queue nope" in messages_of(post(admin_client, where, **form, as_act="yes", to="nope"))
    post(admin_client, where, **form, as_act="yes", to="mail")
    text = read(admin_client, url())
    assert "to queue mail" in words_of(text)
    assert '<progress value="0" max="1"' in text
    assert "0 of 1" in words_of(text)
    queue.acts.advance(Mover(get_queue, is_genuine))
    queue.acts.advance(Mover(get_queue, is_genuine))
    lease = get_queue("mail").pop("w")
    assert lease
    assert (lease.task.user_id, lease.task.name, queue.dlq.count()) == ("acme", "shop.send", 1)
    check(lease, queue="mail", prefix="fq", mode="on")


def test_waiting_tasks_of_a_user_are_canceled_by_an_act_with_a_trial(admin_client: Client, queue: FairQueue) -> None:
    for priority in (2, 2, 2, 4):
        queue.push(Task.create("acme", priority, {}, name="shop.send"))
    where = page_url("tasks", state="queued", user="acme")
    assert "state=queued" in read(admin_client, page_url("users", user="acme"))
    form = hidden(unescape(post(admin_client, where, action="cancel_all").content.decode()))
    post(admin_client, where, **form, as_act="yes", priority="LOW", trial="yes")
    (act,) = queue.acts.list()
    assert (act.actor, act.choice, act.total) == ("admin", "user_id acme, state queued, priority LOW", 3)
    advance(queue)
    assert "1 of 3" in words_of(read(admin_client, url()))
    post(admin_client, url(), action="go_on", act=act.id)
    advance(queue)
    assert queue.get_stats(0).states["canceled"] == 3
    everyone = page_url("tasks", state="queued")
    assert 'name="as_act"' not in post(admin_client, everyone, action="cancel_all").content.decode()
    refused = post(admin_client, everyone, action="cancel_all", confirm="yes", as_act="yes", done="0", left="1")
    assert "Choose a user or a task name" in messages_of(refused)


@pytest.mark.parametrize(
    ("kind", "permission"),
    [("retry", "change_deadletter"), ("discard", "delete_deadletter"), ("cancel", "change_task")],
)
def test_the_buttons_of_an_act_need_the_permission_of_the_act(
    client: Client, queue: FairQueue, kind: str, permission: str
) -> None:
    act = queue.acts.start(kind, trial=True, user_id="acme")  # type: ignore[arg-type]
    others = {"change_deadletter", "delete_deadletter", "change_task"} - {permission}
    log_in(client, "view_queue", "view_deadletter", "view_task", *others)
    assert act.id in read(client, url())
    assert 'name="action"' not in read(client, url())
    for action in ("go_on", "stop", "undo"):
        answer = client.post(url(), {"action": action, "act": act.id, "confirm": "yes"})
        assert answer.status_code == 403
    assert queue.acts.get(act.id) == act


@pytest.mark.parametrize(("kind", "permission"), [("discard", "view_deadletter"), ("cancel", "view_task")])
def test_an_act_is_seen_with_the_permission_to_see_its_tasks(
    client: Client, queue: FairQueue, kind: str, permission: str
) -> None:
    act = queue.acts.start(kind, trial=True, user_id="acme")  # type: ignore[arg-type]
    may_change = ("delete_deadletter", "change_task")
    operator = log_in(client, "view_queue", *may_change, *{"view_deadletter", "view_task"} - {permission})
    assert act.id not in read(client, url())
    assert client.post(url(), {"action": "stop", "act": act.id}).status_code == 403
    allow(operator, permission)
    assert act.id in read(client, url())


def test_a_pause_of_the_queue_is_undone_in_the_audit_with_its_permission(client: Client, queue: FairQueue) -> None:
    with acting_as("ann"):
        queue.pause(note="too fast")
    entry = AuditEntry.objects.get()
    staff = log_in(client, "view_queue", "change_user")
    where = page_url("audit")
    assert 'value="undo"' not in read(client, where)
    assert client.post(where, {"action": "undo", "entry": str(entry.pk)}).status_code == 403
    allow(staff, "change_queue")
    assert 'value="undo"' in read(client, where)
    assert "Undone: pause default" in messages_of(post(client, where, action="undo", entry=str(entry.pk)))
    assert not queue.is_paused()
    again = post(client, where, action="undo", entry=str(entry.pk))
    assert "paused is False now, and no longer True" in messages_of(again)


def test_a_note_that_is_too_long_is_refused_with_its_length(admin_client: Client, queue: FairQueue) -> None:
    bury(queue)
    where = page_url("dead_letters")
    form = hidden(unescape(post(admin_client, where, action="requeue_all").content.decode()))
    page = post(admin_client, where, **form, as_act="yes", note="n" * 201)
    assert "note must have at most 200 characters; it has 201" in messages_of(page)
    assert queue.acts.list() == []


def test_a_failed_trial_of_an_act_can_be_continued(admin_client: Client, queue: FairQueue) -> None:
    for _ in range(2):
        bury(queue, "no such address")
    queue.acts.start("retry", trial=True, user_id="acme")
    advance(queue)
    assert "The trial failed" not in read(admin_client, url())
    queue.fail(pop(queue, "w"), "no such address", retry=False)
    advance(queue)
    text = read(admin_client, url())
    assert "1 changed 1 failed again The trial failed again: look at its error before you go on." in words_of(text)
    assert re.findall(r'name="action" value="(\w+)"', text) == ["stop", "undo", "go_on"]
