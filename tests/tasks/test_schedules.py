"""Schedules from settings: they are brought to the queues, changed and removed, and mistakes are reported."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.core.checks import run_checks

from django_fairque import Priority, Task, aget_queue, get_queue, task
from django_fairque.conf import aclose_queues
from django_fairque.engine.model.errors import ConfigurationError, TaskValidationError
from django_fairque.tasks.errors import TaskUsageError
from django_fairque.tasks.schedules import DeclaredSchedules, sync_schedules
from tests.fixture_types import FairQueue, Server, Settings

GOOD = {"task": "shop.report", "every": 60, "args": ["x"]}


def problem() -> str:
    """Return the one message of the system checks about schedules."""
    (error,) = [message for message in run_checks(tags=["fairque"]) if message.id == "fairque.E010"]
    return str(error.msg)


def names() -> list[str]:
    return [schedule.name for schedule in get_queue().schedules.list()]


@pytest.fixture
def declare(server: Server, settings: Settings, queue: FairQueue) -> Callable[..., FairQueue]:
    """Declare schedules in settings and bring them to the queue."""

    @task(name="shop.report", priority=Priority.LOW)
    def report(day: str, *, full: bool = False) -> None: ...

    def declared(**schedules: Any) -> FairQueue:
        settings.FAIRQUE = {"REDIS": {"URL": server.url}, "QUEUES": {"mail": {}}, "SCHEDULES": schedules}
        sync_schedules()
        return get_queue()

    assert queue.schedules.list() == []
    return declared


def test_declared_schedules_are_kept(declare: Callable[..., FairQueue], settings: Settings) -> None:
    settings.TIME_ZONE = "Europe/Berlin"
    queue = declare(
        nightly={
            "TASK": "shop.report",
            "CRON": "0 3 * * *",
            "ARGS": ["today"],
            "KWARGS": {"full": True},
            "USER": "acme",
        },
        often={"task": "shop.report", "every": 60, "args": ["x"], "queue": "mail", "missed": "one", "priority": "HIGH"},
    )
    (nightly,) = queue.schedules.list()
    assert (nightly.when, nightly.source, nightly.task["user_id"]) == ("0 3 * * * (Europe/Berlin)", "settings", "acme")
    assert nightly.task["payload"] == {"args": ["today"], "kwargs": {"full": True}}
    assert nightly.task["priority"] == Priority.LOW
    (often,) = get_queue("mail").schedules.list()
    assert (often.every, often.missed, often.task["priority"]) == (60, "one", Priority.HIGH)


def test_schedules_that_are_not_declared_any_more_are_removed(declare: Callable[..., FairQueue]) -> None:
    queue = declare(a=GOOD)
    queue.schedules.add("mine", task=Task.create("u", 3, None), every=60)
    declare()
    assert names() == ["mine"]


def test_a_disabled_schedule_stays_so_until_its_declaration_changes(
    declare: Callable[..., FairQueue],
) -> None:
    queue = declare(a=GOOD)
    queue.schedules.pause("a")
    assert not declare(a=GOOD).schedules.get("a").enabled
    assert declare(a={**GOOD, "every": 90}).schedules.get("a").enabled


def test_a_mistake_in_a_declared_schedule_affects_no_other_schedule(
    declare: Callable[..., FairQueue], caplog: pytest.LogCaptureFixture
) -> None:
    declare(a=GOOD, b=GOOD)
    with pytest.raises(TaskUsageError, match=r"b: .*did you mean 'shop.report'"):
        declare(a={**GOOD, "every": 70}, b={**GOOD, "task": "shop.rapport"})
    assert [(schedule.name, schedule.every) for schedule in get_queue().schedules.list()] == [("a", 70), ("b", 60)]
    DeclaredSchedules().update_or_log()
    assert "SCHEDULES are not all in force: b: " in caplog.text
    assert "the schedule 'b' can't be used" in problem()


def test_the_expiry_of_a_scheduled_task_counts_from_each_instant(declare: Callable[..., FairQueue]) -> None:
    @task(name="shop.timed", expires=60.0)
    def timed() -> None: ...

    queue = declare(
        a={"TASK": "shop.timed", "EVERY": 60},
        b={"TASK": "shop.timed", "EVERY": 60, "EXPIRES": 5},
        c={"TASK": "shop.report", "EVERY": 60, "ARGS": ["x"]},
    )
    assert {schedule.name: schedule.expires for schedule in queue.schedules.list()} == {"a": 60, "b": 5, "c": None}
    queue.schedules.add("d", task=timed.using(expires_at=timedelta(seconds=7)).s(), every=60)
    queue.schedules.add("e", task=timed.s(), every=60, expires=None)
    assert [queue.schedules.get(name).expires for name in "de"] == [7, None]
    sent = queue.get_task(queue.schedules.run_now("d"))
    assert sent.expires_at == pytest.approx(sent.created_at + 7, abs=1)
    with pytest.raises(TaskValidationError, match="its schedule says when"):
        queue.schedules.add("f", task=timed.using(expires_at=time.time() + 60).s(), every=60)


def test_a_task_with_a_delay_affects_no_other_schedule(declare: Callable[..., FairQueue]) -> None:
    @task(name="shop.timed", delay=60.0)
    def timed() -> None: ...

    with pytest.raises(
        TaskUsageError, match=r"b: a scheduled task has no depends_on, delay, execute_after or expires_at"
    ):
        declare(b={"task": "shop.timed", "every": 60}, c=GOOD)
    assert names() == ["c"]
    assert "the schedule 'b' can't be used" in problem()


def test_a_failing_user_function_affects_no_other_schedule(
    declare: Callable[..., FairQueue], caplog: pytest.LogCaptureFixture
) -> None:
    owners: dict[str, str] = {}

    @task(name="shop.owned", user=lambda: owners["owner"])
    def owned() -> None: ...

    bad = {"task": "shop.owned", "every": 60}
    with pytest.raises(
        TaskUsageError, match=r"b: the user function of shop.owned raised KeyError: 'owner'; fix it, or"
    ):
        declare(a=GOOD, b=bad, c={**bad, "user": "acme"})
    assert names() == ["a", "c"]
    DeclaredSchedules().update_or_log()
    assert "SCHEDULES are not all in force: b: the user function" in caplog.text
    assert "the schedule 'b' can't be used: the user function" in problem()


def test_a_user_function_of_a_schedule_is_called_once(declare: Callable[..., FairQueue]) -> None:
    answers = iter(["ann"])

    @task(name="shop.owned", user=lambda: next(answers))
    def owned() -> None: ...

    declare(a={"task": "shop.owned", "every": 60}, b=GOOD)
    assert names() == ["a", "b"]


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ({"task": "shop.report"}, "SCHEDULES.*a.*: a schedule needs either cron or every"),
        ({"task": "shop.report", "cron": "x * * * *"}, "can't be understood"),
        ({"task": "shop.report", "every": 60, "timezone": "Mars"}, "name of a time zone, got 'Mars'"),
        ({"task": "shop.report", "every": 60, "expires": 0}, "a number of seconds greater than 0 .*; got 0"),
        ({"task": "shop.report", "evry": 60}, "unknown key; did you mean EVERY"),
        ({"task": "shop.report", "every": 60, "queue": "male"}, "unknown queue 'male'; did you mean mail"),
        ({"task": "shop.report", "every": 60, "missed": "twice"}, '"skip", "one" or "all"; got \'twice\''),
        ({"every": 60}, 'the name of a task, such as "shop.tasks.report"; got nothing'),
    ],
)
def test_a_mistake_in_a_declared_schedule_is_refused(
    declare: Callable[..., FairQueue], schedule: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        declare(a=schedule)


async def test_a_task_stands_for_its_call_without_arguments(queue: FairQueue) -> None:
    @task(name="refresh", expires=600, priority=2, user="whom")
    def refresh(whom: str = "acme", *, all_of_it: bool = False) -> None: ...

    kept = queue.schedules.add("s", task=refresh, every=60)
    assert kept == queue.schedules.add("s", task=refresh.s(), every=60)
    assert (kept.task["name"], kept.task["user_id"], kept.expires) == ("refresh", "acme", 600)
    other = await sync_to_async(queue.schedules.add)("s", task=refresh.using(priority=3), every=60)
    assert other.task["priority"] == 3
    awaited = await aget_queue()
    assert await awaited.schedules.add("s", task=refresh, every=60) == kept
    await aclose_queues()


def test_a_schedule_refuses_a_task_that_needs_arguments(queue: FairQueue) -> None:
    @task(name="report")
    def report(customer: str) -> None: ...

    with pytest.raises(TaskUsageError, match="customer"):
        queue.schedules.add("s", task=report, every=60)
    assert queue.schedules.list() == []


def test_two_services_with_different_declarations_get_a_warning(
    declare: Callable[..., FairQueue],
    settings: Settings,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    declare(a=GOOD)
    first = DeclaredSchedules("w1")
    declared = {**settings.FAIRQUE}
    settings.FAIRQUE = {**declared, "SCHEDULES": {"b": GOOD}, "CODE_VERSION": "other"}
    second = DeclaredSchedules("w2")
    same = DeclaredSchedules("w3")
    assert first.update_or_log()
    assert second.update_or_log()
    assert same.update_or_log()
    assert not caplog.text
    assert first.update_or_log()
    assert first.update_or_log()
    (line,) = [line for line in caplog.messages if line.startswith("queue default:")]
    assert "are not in force: version other was deployed later" in line
    monkeypatch.setattr("django_fairque.tasks.schedules.MAX_DEPLOYMENT_SECONDS", 0)
    caplog.clear()
    for _ in range(2):
        assert first.update_or_log()
    (line,) = [line for line in caplog.messages if line.startswith("queue default:")]
    assert "workers of version other (in force) and " in line
    assert names() == ["b"]
    first.adopt("default")
    assert names() == ["a"]


def test_a_version_by_name_is_recommended(declare: Callable[..., FairQueue], settings: Settings) -> None:
    found = []
    for schedules, version in (({}, None), ({"a": GOOD}, None), ({"a": GOOD}, "v1")):
        declare(**schedules)
        settings.FAIRQUE = {**settings.FAIRQUE, "CODE_VERSION": version}
        found.append([message.id for message in run_checks(tags=["fairque"], include_deployment_checks=True)])
    assert ["fairque.W054" in ids for ids in found] == [False, True, False]


@pytest.mark.parametrize(
    ("cron", "words"),
    [
        ("*/90 * * * *", "the minute field */90 has a step of 90, but only 60 values"),
        ("0 */25 * * *", "the hour field */25 has a step of 25, but only 24 values"),
        ("0 5/30 * * *", "the hour field 5/30 has a step of 30"),
        ("*/60 */24 */31 */12 */7", ""),
        ("1,*/45 8-18/2 * * mon-fri", ""),
    ],
)
def test_steps_that_are_longer_than_their_field_get_a_warning(
    declare: Callable[..., FairQueue], cron: str, words: str
) -> None:
    declare(a={"task": "shop.report", "cron": cron, "args": ["x"]}, b=GOOD)
    warnings = [str(message.msg) for message in run_checks(tags=["fairque"]) if message.id == "fairque.W019"]
    assert len(warnings) == bool(words)
    assert words in "".join(warnings)


def test_overlap_jitter_and_catch_up_are_declared(declare: Callable[..., FairQueue]) -> None:
    queue = declare(a={**GOOD, "OVERLAP": "queue", "JITTER": 30, "CATCH_UP": 3600}, b=GOOD)
    found = [(schedule.overlap, schedule.jitter, schedule.catch_up) for schedule in queue.schedules.list()]
    assert found == [("queue", 30, 3600), ("allow", 0, 60)]
    for wrong, words in (
        ({"OVERLAP": "forbid"}, '"allow", "skip" or "queue"; got \'forbid\''),
        ({"JITTER": -1}, "got -1"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            declare(a={**GOOD, **wrong})
