"""The audit: one entry for one act of a command, of code that names an actor, and of ``fairque_top``."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import timedelta
from getpass import getuser
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import DatabaseError
from django.utils import timezone

from django_fairque import TaskValidationError, acting_as, aget_queue
from django_fairque.conf.current import aclose_queues
from django_fairque.engine.model.task import Task
from django_fairque.management.terminal import QueueApp
from django_fairque.models import AuditEntry
from tests.fixture_types import FairQueue
from tests.leases import pop

from .conftest import Run
from .test_top_command import cells, wait_until

pytestmark = pytest.mark.django_db(transaction=True)

CALM = {"paused": True, "note": "too many", "until": "2100-01-01 00:00:00Z"}
PAUSED = ({"paused": False, "note": None, "until": None}, CALM)
END = 4_102_444_800


@pytest.fixture
def filled(queue: FairQueue) -> FairQueue:
    """A queue with a waiting, a scheduled, a blocked and a dead task, a schedule, a live and a lost worker."""
    queue.heartbeat("lost-7-abcdef.0.1", {}, now=time.time() - 400, ttl=60)
    queue.push(Task.create("acme", 3, None, task_id="dies", max_retries=0))
    queue.fail(pop(queue), "no disk")
    for task_id, options in (
        ("first", {}),
        ("later", {"execute_after": float(END)}),
        ("next", {"depends_on": ["first"]}),
    ):
        queue.push(Task.create("acme", 3, None, task_id=task_id, run_id="night", **options))
    queue.schedules.add("backup", task=Task.create("acme", 3, None, name="backup"), every=3600)
    queue.heartbeat("w1", {})
    return queue


def entries() -> list[tuple[Any, ...]]:
    return [
        (entry.act, entry.kind, entry.subject, entry.before, entry.after) for entry in AuditEntry.objects.order_by("pk")
    ]


ACTS: list[tuple[Callable[[FairQueue], object], tuple[Any, ...]]] = [
    (lambda queue: queue.pause(note="too many", until=END), ("pause", "queue", "", *PAUSED)),
    (lambda queue: queue.user("acme").pause(note="too many", until=END), ("pause", "user", "acme", *PAUSED)),
    (lambda queue: queue.user("acme").resume(), ("resume", "user", "acme", {}, {})),
    (lambda queue: queue.user("acme").set_weight(2), ("weight", "user", "acme", {"weight": 1}, {"weight": 2})),
    (
        lambda queue: queue.user("acme").set_rate("5/m"),
        ("limits", "user", "acme", {"rate": None, "burst": None}, {"rate": "5/60s", "burst": 1}),
    ),
    (
        lambda queue: queue.user("acme").set_organization("corp"),
        ("organization", "user", "acme", {"organization": None}, {"organization": "corp"}),
    ),
    (
        lambda queue: queue.user("acme").purge(),
        ("purge", "user", "acme", {"waiting": 3}, {"waiting": 0, "canceled": 3}),
    ),
    (lambda queue: queue.purge(), ("purge", "queue", "", {"waiting": 3}, {"waiting": 0, "canceled": 3})),
    (
        lambda queue: queue.organization("corp").set_share(0.2),
        ("share", "organization", "corp", {"share": None}, {"share": 0.2}),
    ),
    (
        lambda queue: queue.organization("corp").pause(note="too many", until=END),
        ("pause", "organization", "corp", *PAUSED),
    ),
    (
        lambda queue: queue.limit("mail").close(),
        ("close", "limit", "mail", {"closed": False}, {"closed": True}),
    ),
    (lambda queue: queue.cancel("later"), ("cancel", "task", "later", {"scheduled": 1}, {"canceled": 1})),
    (
        lambda queue: queue.cancel_many(["later", "next", "gone"]),
        ("cancel", "task", "later, next, gone", {"scheduled": 1, "deferred": 1}, {"canceled": 2}),
    ),
    (lambda queue: queue.cancel_run("night"), ("cancel", "run", "night", {}, {"canceled": 3})),
    (lambda queue: queue.run_now("later"), ("run now", "task", "later", {"scheduled": 1}, {"queued": 1})),
    (lambda queue: queue.ignore_dependencies("next"), ("release", "task", "next", {"deferred": 1}, {"queued": 1})),
    (
        lambda queue: queue.dlq.requeue("dies~1", lane="urgent"),
        ("requeue", "dead letter", "dies~1", {"dead letters": 1}, {"dead letters": 0, "requeued": 1, "lane": "urgent"}),
    ),
    (
        lambda queue: queue.dlq.discard("dies~1"),
        ("discard", "dead letter", "dies~1", {"dead letters": 1}, {"dead letters": 0}),
    ),
    (
        lambda queue: queue.dlq.requeue_all(user_id="acme"),
        ("requeue", "dead letter", "user_id acme", {"dead letters": 1}, {"dead letters": 0, "requeued": 1}),
    ),
    (
        lambda queue: queue.schedules.pause("backup", note="too many", until=END),
        ("pause", "schedule", "backup", *PAUSED),
    ),
    (
        lambda queue: queue.set_worker_command("w1", "drain"),
        ("drain", "worker", "w1", {"command": None}, {"command": "drain"}),
    ),
]


@pytest.mark.parametrize(("act", "expected"), ACTS)
def test_an_act_with_an_actor_is_one_entry_with_values_before_and_after(
    filled: FairQueue, act: Callable[[FairQueue], object], expected: tuple[Any, ...]
) -> None:
    with acting_as("billing"):
        act(filled)
    assert entries() == [expected]
    entry = AuditEntry.objects.get()
    assert (entry.actor, entry.source, entry.queue) == ("billing", "code", "default")


def test_no_entry_is_made_without_an_actor_or_effect_or_permission(filled: FairQueue) -> None:
    filled.user("acme").set_weight(3)
    with acting_as("billing"):
        assert not filled.run_now("first")
        with pytest.raises(TaskValidationError):
            filled.user("acme").set_weight(-1)
    assert entries() == []
    with pytest.raises(TaskValidationError, match="actor must be a text of 1 to 256 characters, got ''"), acting_as(""):
        pass


async def test_an_act_of_a_coroutine_is_recorded_in_the_audit(queue: FairQueue) -> None:
    with acting_as("billing"):
        await (await aget_queue()).user("acme").set_weight(2)
    await aclose_queues()
    entry = await AuditEntry.objects.aget()
    assert (entry.actor, entry.before, entry.after) == ("billing", {"weight": 1}, {"weight": 2})


COMMANDS = [
    (
        "fairque_user limit acme --running 2 --rate 5/m --sla 3 --create",
        ("limits", "user", "acme"),
        {"max_running": 2, "rate": "5/60s", "burst": 1, "sla": 3},
    ),
    ("fairque_user weight acme 2", ("weight", "user", "acme"), {"weight": 2}),
    ("fairque_user purge acme", ("purge", "user", "acme"), {"waiting": 0, "canceled": 3}),
    ("fairque_organization share corp 0.2", ("share", "organization", "corp"), {"share": 0.2}),
    ("fairque_limit close mail", ("close", "limit", "mail"), {"closed": True}),
    ("fairque_task cancel later", ("cancel", "task", "later"), {"canceled": 1}),
    ("fairque_dlq discard --all --yes", ("discard", "dead letter", "all"), {"dead letters": 0, "discarded": 1}),
    ("fairque_schedule remove backup", ("remove", "schedule", "backup"), {}),
    ("fairque_incidents --acknowledge lost-7-abcdef", ("acknowledge", "worker", "lost-7-abcdef"), {"lost": False}),
]


@pytest.mark.parametrize(("words", "expected", "after"), COMMANDS)
def test_a_command_writes_one_audit_entry_with_its_user(
    filled: FairQueue, run: Run, words: str, expected: tuple[str, ...], after: dict[str, Any]
) -> None:
    run(*words.split(), "--actor", "eve")
    ((*found, _, values),) = entries()
    assert (tuple(found), values) == (expected, after)
    assert (AuditEntry.objects.get().actor, AuditEntry.objects.get().source) == ("eve", "command")


def test_a_command_without_an_actor_names_the_user_of_the_operating_system(filled: FairQueue, run: Run) -> None:
    run("fairque_user", "pause", "acme")
    run("fairque_user", "list")
    assert [entry.actor for entry in AuditEntry.objects.all()] == [getuser()]


async def test_the_keys_of_fairque_top_write_audit_entries_of_its_operator(queue: FairQueue) -> None:
    queue.push(Task.create("acme", 3, None))
    app = QueueApp(queue, actor="eve")
    async with app.run_test() as pilot:
        await wait_until(pilot, lambda: len(cells(app, "users")) == 1)
        await pilot.press("p")
        await wait_until(pilot, lambda: queue.user("acme").stats().paused)
        await pilot.press("w", *"2.5", "enter")
        await wait_until(pilot, lambda: queue.user("acme").stats().weight == 2.5)
    found = [(entry.actor, entry.source, entry.act) async for entry in AuditEntry.objects.order_by("pk")]
    assert found == [("eve", "fairque_top", "pause"), ("eve", "fairque_top", "weight")]


def test_the_command_lists_the_acts_on_an_object(filled: FairQueue, run: Run) -> None:
    with acting_as("billing"):
        filled.user("acme").set_weight(2)
        filled.user("bolt").pause(note="password=hunter2")
    lines = run("fairque_audit").splitlines()
    assert [line.split()[2:5] for line in lines[1:]] == [["billing", "code", "pause"], ["billing", "code", "weight"]]
    assert "user bolt  paused no, note none  paused yes, note password=" in lines[1]
    assert "hunter2" not in lines[1]
    (row,) = run("fairque_audit", "--object", "acme", "--json").splitlines()
    assert json.loads(row)["after"] == {"weight": 2}
    assert len(run("fairque_audit", "--actor", "nobody").splitlines()) == 1


def test_entries_are_removed_after_90_days(queue: FairQueue, run: Run) -> None:
    for days in (91, 89):
        AuditEntry.objects.create(
            at=timezone.now() - timedelta(days=days), actor="eve", queue="default", act="pause", kind="user"
        )
    assert len(run("fairque_audit").splitlines()) == 2, "the older one is not shown"
    with acting_as("billing"):
        queue.pause()
    assert [entry.act for entry in AuditEntry.objects.order_by("at")] == ["pause", "pause"]


def test_an_act_is_done_and_logged_if_the_database_refuses_its_entry(
    queue: FairQueue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise DatabaseError("no such table")

    monkeypatch.setattr(AuditEntry, "save", refuse)
    with acting_as("billing"):
        queue.user("acme").set_weight(2)
    assert queue.user("acme").stats().weight == 2
    (line,) = (record.getMessage() for record in caplog.records if record.name == "django_fairque.audit")
    assert line.startswith('queue default: weight user acme by billing (code), before and after: [{"weight": 1.0}')
    assert User.objects.count() == 0, "the database can still be used"
