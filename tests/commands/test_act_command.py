"""``manage.py fairque_act`` starts an act on many tasks, and shows, stops and undoes it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.core.management import CommandError

from django_fairque.audit import acting_as
from django_fairque.conf import get_queue
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.engine.scripting.operations import Request, ScriptCall
from django_fairque.engine.transport.connection import Transport
from django_fairque.models import AuditEntry
from tests.fixture_types import Settings

from .conftest import Bury, Run

pytestmark = pytest.mark.django_db


def advance(queue: FairQueue) -> None:
    for _ in range(5):
        queue.acts.advance()


def test_an_act_is_started_continued_after_its_trial_and_undone(queue: FairQueue, run: Run, bury: Bury) -> None:
    for _ in range(3):
        bury(user="u")
    bury(user="v")
    arguments = ("--user", "u", "--trial", "--note", "fixed in 1.2", "--actor", "ann")
    text = run("fairque_act", "start", "discard", *arguments)
    assert "state    trial" in text
    assert "! no worker runs" in text
    advance(queue)
    (act,) = queue.acts.list()
    assert "result   1 discarded" in run("fairque_act", "show", act.id)
    assert "state    running" in run("fairque_act", "go-on", act.id)
    advance(queue)
    (shown,) = map(json.loads, run("fairque_act", "list", "--json").splitlines())
    assert (shown["state"], shown["done"], shown["filters"]) == ("done", 3, {"user_id": "u"})
    assert "state    undoing" in run("fairque_act", "undo", act.id, "--actor", "bob")
    advance(queue)
    assert "3 discarded; 3 restored" in run("fairque_act", "list")
    assert queue.dlq.count() == 4
    entries = AuditEntry.objects.order_by("pk").values_list("actor", "act", "kind", "subject")
    assert {("ann", "discard", "act", act.id), ("bob", "undo", "act", act.id)} <= set(entries)
    assert len(entries) == 3  # the start, the end of the trial and the undo


def test_dead_letters_are_moved_to_a_declared_queue(queue: FairQueue, run: Run, settings: Settings) -> None:
    settings.FAIRQUE = {**settings.FAIRQUE, "QUEUES": {"default": {}, "mail": {}}}
    with pytest.raises(CommandError, match="nope"):
        run("fairque_act", "start", "move", "--to", "nope")
    text = run("fairque_act", "start", "move", "--to", "mail", "--user", "u")
    assert "progress 0 of 0" in text
    assert get_queue().acts.list()[0].to == "mail"


def test_the_values_before_a_pause_a_weight_and_limits_are_set_back(queue: FairQueue, run: Run) -> None:
    user = queue.user("u")
    with acting_as("ann"):
        user.set_weight(3)
        user.set_max_running(4)
        user.set_rate("9/m", burst=2)
        user.pause(note="too many", until=3786912000)
        user.resume()
    entries = list(AuditEntry.objects.order_by("-pk"))
    for entry in entries:
        assert run("fairque_act", "undo-entry", str(entry.pk)).startswith("undone: ")
        if entry.act == "resume":
            pause = user.stats().pause
            assert pause is not None
            assert (pause.note, pause.until) == ("too many", 3786912000)
    stats = user.stats()
    assert (stats.weight, stats.max_running, stats.rate, stats.paused) == (1, None, None, False)
    with pytest.raises(CommandError, match=r"weight is 1\.0 now, and no longer 3\.0; nothing was changed"):
        run("fairque_act", "undo-entry", str(entries[-1].pk))


@pytest.mark.parametrize("kind", ["user", "organization", "queue"])
def test_a_change_of_a_colleague_at_the_same_moment_is_not_undone(
    queue: FairQueue, run: Run, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    target: Any = queue if kind == "queue" else getattr(queue, kind)("u")
    with acting_as("ann"):
        target.pause(note="by ann")
    send = Transport.send

    def send_after_a_colleague(transport: Transport, request: Request, *args: Any) -> Any:
        if isinstance(request, ScriptCall) and request.script in ("user", "organization", "pause"):
            monkeypatch.setattr(Transport, "send", send)
            target.pause(note="by bob", until=3786912000)
        return send(transport, request, *args)

    monkeypatch.setattr(Transport, "send", send_after_a_colleague)
    with pytest.raises(CommandError, match="was changed at the same moment; nothing was undone"):
        run("fairque_act", "undo-entry", str(AuditEntry.objects.get().pk))
    pause: Any = (queue.get_stats() if kind == "queue" else target.stats()).pause
    assert (pause.note, pause.until) == ("by bob", 3786912000)


def test_an_act_that_is_not_known_is_named_in_the_error(queue: FairQueue, run: Run) -> None:
    with pytest.raises(CommandError, match=r"has no act 'nope'.*kept for 24 hours"):
        run("fairque_act", "stop", "nope")
    with pytest.raises(CommandError, match="a cancel needs user_id or name"):
        run("fairque_act", "start", "cancel")
