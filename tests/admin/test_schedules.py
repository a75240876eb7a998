"""The page of schedules: what it shows, and everything that can be done there."""

from __future__ import annotations

import html
import time
from functools import partial
from typing import Any

import pytest

from django_fairque.admin.pages.schedules import SCHEDULES_PER_PAGE
from django_fairque.conf import get_queue
from django_fairque.engine.model.task import Task
from django_fairque.engine.schedules.schedule_ops import Schedule
from django_fairque.models import AuditEntry
from django_fairque.tasks.schedules import sync_schedules
from tests.admin.page_reader import assert_mistake, led_to, log_in, messages_of, page_url, post, read
from tests.fixture_types import Client, FairQueue, Redis, Settings
from tests.leases import pop
from tests.stored_tasks import remove_task

pytestmark = pytest.mark.django_db

TASK = "library.tasks.analyse_document"
HOSTILE = "<script>alert(1)</script>"


url = partial(page_url, "schedules")


def rows(client: Client, **query: str) -> dict[str, Any]:
    return {row["schedule"].name: row for row in client.get(url(**query)).context["table"]}


def act(client: Client, action: str, name: str, **fields: Any) -> Any:
    return post(client, url(), action=action, name=name, **fields)


def filled(**changes: Any) -> dict[str, Any]:
    fields = {
        "name": "nightly",
        "task": TASK,
        "cron": "0 3 * * 1-5",
        "every": "",
        "timezone": "Europe/Berlin",
        "args": '["acme", 42]',
        "kwargs": "",
        "user": "",
        "priority": "",
        "missed": "one",
        "overlap": "allow",
        "enabled": "on",
    }
    return {"action": "save", **fields, **changes}


def add(client: Client, **changes: Any) -> Any:
    return post(client, url(add="1"), **filled(**changes))


def edit(client: Client, name: str, **changes: Any) -> Any:
    return post(client, url(edit=name), **filled(**{"lane": "normal", **changes}))


def make_schedule(queue: FairQueue, name: str = "a", payload: Any = 1, **options: Any) -> Schedule:
    """Add a schedule, every minute unless there is a cron."""
    when = {} if "cron" in options else {"every": 60}
    return queue.schedules.add(name, task=Task.create("ann", 3, payload, name=TASK), **{**when, **options})


def test_run_times_are_described_in_the_zone_of_the_schedule(admin_client: Client, queue: FairQueue) -> None:
    payload = {"args": ["geheim"], "kwargs": {}}
    make_schedule(queue, payload=payload, cron="0 9 * * 1-5", timezone="Asia/Tokyo")
    make_schedule(queue, "b", payload, every=300, now=2e9, enabled=False)
    make_schedule(queue, "c", payload, cron="*/90 * * * *")
    shown = rows(admin_client)
    assert shown["c"]["when"] == "*/90 * * * *", "this is minute 0 of each hour, not every 90th minute"
    assert (shown["a"]["when"], shown["b"]["when"]) == ("At 09:00 on Monday through Friday", "Every 5 min")
    assert (shown["a"]["schedule"].last, shown["b"]["schedule"].next_at) == (None, None)
    text = read(admin_client, url())
    for words in ("T09:00:00+09:00", ' 09:00:00 JST">', "paused"):
        assert words in text
    assert "geheim" not in text, "arguments may be secrets"


def test_the_last_task_is_shown_with_its_state(admin_client: Client, queue: FairQueue) -> None:
    for name in ("a", "b"):
        make_schedule(queue, name, start=1.9e9, now=1.9e9)
    queue.schedules.fire_due(now=1.9e9 + 61)
    assert "T17:47:40+00:00" in read(admin_client, url()), "1.9e9 + 60"
    lease = pop(queue, "w", ["ann"])
    queue.finish(lease)
    shown = rows(admin_client)
    assert sorted(row["last_task"].state.value for row in shown.values()) == ["finished", "queued"]
    (link,) = (row["last_url"] for row in shown.values() if row["last_task"].task_id == lease.task_id)
    assert f'<a href="{link}">finished</a>' in read(admin_client, url())
    assert lease.task_id in read(admin_client, link)


def test_a_last_task_that_is_gone_is_not_shown(admin_client: Client, queue: FairQueue, redis: Redis) -> None:
    make_schedule(queue, start=1.9e9, now=1.9e9)
    queue.schedules.fire_due(now=1.9e9 + 61)
    last = queue.schedules.get("a").last
    assert last is not None
    remove_task(redis, last.task_id)
    assert rows(admin_client)["a"]["last_task"] is None
    assert "its task is not kept any more" in read(admin_client, url())
    redis.flushall()


def test_the_next_five_run_times_are_shown(admin_client: Client, queue: FairQueue) -> None:
    make_schedule(queue, cron="0 9 * * *", timezone="Asia/Tokyo")
    make_schedule(queue, "b", enabled=False)
    shown = rows(admin_client)
    assert (len(shown["a"]["next"]), shown["b"]["next"]) == (5, [])
    assert read(admin_client, url()).count("T09:00:00+09:00") == 6


def test_a_schedule_of_another_version_is_shown_unchanged(admin_client: Client, queue: FairQueue, redis: Redis) -> None:
    make_schedule(queue, cron="0 9 * * *")
    written = redis.hget("fq:{default:0}:schedules", "a")
    assert isinstance(written, bytes)
    strange = written.replace(b"0 9 * * *", b"0 9 @full-moon").replace(b"UTC", b"Moon/Tranquility")
    redis.hset("fq:{default:0}:schedules", "a", strange)
    row = rows(admin_client)["a"]
    assert row["when"] == "0 9 @full-moon"
    assert "T09:00:00+00:00" in read(admin_client, url())


def test_the_list_of_schedules_has_pages(admin_client: Client, queue: FairQueue) -> None:
    for number in range(SCHEDULES_PER_PAGE + 2):
        make_schedule(queue, f"s{number:03}")
    first = admin_client.get(url())
    assert len(first.context["table"]) == SCHEDULES_PER_PAGE
    second = admin_client.get(first.context["next"])
    assert [row["schedule"].name for row in second.context["table"]] == [
        f"s{SCHEDULES_PER_PAGE + n:03}" for n in range(2)
    ]
    assert (second.context["next"], second.context["first"]) == ("", url(queue="default"))


def test_a_schedule_is_added_by_cron(admin_client: Client, queue: FairQueue) -> None:
    answer = add(admin_client, user="acme", priority="HIGH", kwargs="{}")
    assert messages_of(answer) == "Schedule nightly was added: At 03:00 on Monday through Friday."
    schedule = queue.schedules.get("nightly")
    assert (schedule.cron, schedule.timezone, schedule.missed) == ("0 3 * * 1-5", "Europe/Berlin", "one")
    assert (schedule.enabled, schedule.source) == (True, "admin")
    assert schedule.task["payload"] == {"args": ["acme", 42], "kwargs": {}}
    assert (schedule.task["user_id"], schedule.task["name"]) == ("acme", TASK)
    assert schedule.make_task(None).priority.name == "HIGH"
    entry = AuditEntry.objects.get()
    assert (str(entry), entry.text) == ("default: nightly", messages_of(answer))


def test_a_disabled_schedule_is_added_by_interval(admin_client: Client, queue: FairQueue) -> None:
    add(admin_client, cron="", every="90", enabled="")
    schedule = queue.schedules.get("nightly")
    assert (schedule.every, schedule.cron, schedule.enabled, schedule.next_at) == (90, None, False, None)


def test_the_form_begins_with_the_projects_zone_and_the_known_tasks(admin_client: Client, queue: FairQueue) -> None:
    text = read(admin_client, url(add="1"))
    assert 'name="timezone" value="UTC"' in text
    assert f'<option value="{TASK}">' in text
    assert "data-refresh" not in text


@pytest.mark.parametrize(
    ("field", "changes", "words"),
    [
        ("name", {"name": ""}, "required"),
        ("task", {"task": "library.tasks.analyse_documents"}, f"did you mean '{TASK}'"),
        ("cron", {"cron": "nightly"}, "expected five fields"),
        ("cron", {"cron": "0 0 30 2 *"}, "never fires"),
        ("cron", {"cron": ""}, "needs either cron or every"),
        ("cron", {"every": "60"}, "needs either cron or every"),
        ("every", {"cron": "", "every": "0.1"}, "from 1 to ten years"),
        ("every", {"cron": "", "every": "often"}, "Enter a number"),
        ("timezone", {"timezone": "Europe/Berlinn"}, "did you mean Europe/Berlin"),
        ("jitter", {"jitter": "-1"}, "greater than or equal to 0"),
        ("catch_up", {"catch_up": "1e999"}, "Enter a number"),
        ("overlap", {"overlap": "forbid"}, "Select a valid choice"),
        ("args", {"args": "["}, "Expected a JSON list"),
        ("args", {"args": '{"a": 1}'}, "Expected a JSON list, got {"),
        ("args", {"args": "[]"}, "missing a required argument"),
        ("kwargs", {"kwargs": "[1]"}, "Expected a JSON object, got [1]"),
        ("kwargs", {"args": "", "kwargs": '{"colour": 1}'}, "argument"),
    ],
)
def test_a_mistake_is_shown_next_to_its_field_and_other_input_is_kept(
    admin_client: Client, queue: FairQueue, field: str, changes: dict[str, str], words: str
) -> None:
    assert_mistake(add(admin_client, user="keep-me", **changes), field, words, "keep-me")
    assert queue.schedules.list() == []


def test_a_duplicate_schedule_and_a_schedule_beyond_the_maximum_are_refused(
    admin_client: Client, queue: FairQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(admin_client)
    assert "already" in add(admin_client, cron="1 1 * * *").context["form"].errors["name"][0]
    assert queue.schedules.get("nightly").cron == "0 3 * * 1-5"
    monkeypatch.setattr("django_fairque.engine.schedules.schedule_ops.MAX_SCHEDULES", 0)
    assert "remove some" in add(admin_client, name="other").context["form"].errors["name"][0]


def test_editing_the_timing_keeps_the_task_unchanged(admin_client: Client, queue: FairQueue) -> None:
    task = Task.create("ann", 2, {"args": ["k", 1], "kwargs": {}}, name=TASK, max_retries=9, timeout=7)
    before = queue.schedules.add("a", task=task, every=60, catch_up=5, source="command")
    answer = edit(admin_client, "a", cron="0 4 * * *", args="", user="ann", priority=task.priority.name)
    assert messages_of(answer) == "Schedule a was changed: At 04:00 every day."
    after = queue.schedules.get("a")
    assert after.task == before.task
    assert (after.cron, after.every, after.catch_up, after.source) == ("0 4 * * *", None, 60, "command")
    assert [schedule.name for schedule in queue.schedules.list()] == ["a"]


def test_overlap_jitter_and_catch_up_are_edited_and_a_pause_stays(admin_client: Client, queue: FairQueue) -> None:
    add(admin_client, overlap="queue", jitter="20.5", catch_up="3600")
    schedule = queue.schedules.get("nightly")
    assert (schedule.overlap, schedule.jitter, schedule.catch_up) == ("queue", 20.5, 3600)
    queue.schedules.pause("nightly", note="moving", until=4e9)
    text = read(admin_client, url(edit="nightly"))
    for words in ('value="20.5"', 'value="3600.0"', '<option value="queue" selected>'):
        assert words in text
    edit(admin_client, "nightly", args="", user="acme", overlap="skip", cron="0 5 * * *")
    schedule = queue.schedules.get("nightly")
    assert (schedule.overlap, schedule.jitter, schedule.catch_up) == ("skip", 0, 60)
    assert (schedule.pause_note, schedule.pause_until, (schedule.next_at or 0) > 4e9) == ("moving", 4e9, True)


def test_the_latest_runs_are_shown_with_their_results(admin_client: Client, queue: FairQueue, redis: Redis) -> None:
    make_schedule(queue, overlap="skip", timezone="Asia/Tokyo", start=1.9e9, now=1.9e9)
    assert "It has not run yet." in read(admin_client, url(runs="a"))
    for minute in (1, 2, 3):
        queue.schedules.fire_due(now=1.9e9 + 60 * minute)
    queue.finish(pop(queue, "w", now=1.9e9 + 190), now=1.9e9 + 193)
    text = read(admin_client, rows(admin_client)["a"]["runs"])
    for words in ("finished", "skipped", "2 run times", "3 s", "T02:48:40+09:00"):
        assert words in text
    remove_task(redis, f"schedule:a:{1_900_000_060_000_000}")
    assert "its task is not kept any more" in read(admin_client, url(runs="a"))
    redis.flushall()
    assert "has no schedule" in led_to(admin_client, url(runs="gone"), "schedules")


@pytest.mark.parametrize("lane", ["bulk", "normal"])
def test_editing_keeps_the_lane_or_changes_it(admin_client: Client, queue: FairQueue, lane: Any) -> None:
    payload = {"args": ["k", 1], "kwargs": {}}
    queue.schedules.add("a", task=Task.create("ann", 3, payload, name=TASK, lane=lane), cron="0 3 * * *")
    assert f'<option value="{lane}" selected>' in read(admin_client, url(edit="a"))
    edit(admin_client, "a", args="", user="bob", priority="NORMAL", lane=lane)
    task = queue.schedules.get("a").make_task(None)
    assert (task.user_id, task.lane) == ("bob", lane)
    edit(admin_client, "a", args="", user="bob", priority="NORMAL", lane="urgent")
    assert queue.schedules.get("a").make_task(None).lane == "urgent"


@pytest.mark.parametrize(("chosen", "lane"), [("", "normal"), ("urgent", "urgent"), ("bulk", "bulk")])
def test_a_new_schedule_has_the_chosen_lane(admin_client: Client, queue: FairQueue, chosen: str, lane: str) -> None:
    add(admin_client, lane=chosen)
    assert queue.schedules.get("nightly").make_task(None).lane == lane


def test_an_urgent_schedule_with_a_priority_is_refused(admin_client: Client, queue: FairQueue) -> None:
    answer = admin_client.post(url(add="1"), filled(lane="urgent", priority="HIGH"))
    assert_mistake(answer, "lane", "a task of lane urgent has no priority, got HIGH", "nightly")
    assert_mistake(admin_client.post(url(add="1"), filled(lane="fast")), "lane", "fast is not one of", "nightly")


def test_editing_keeps_the_spaces_of_the_user(admin_client: Client, queue: FairQueue) -> None:
    queue.schedules.add("s", task=Task.create(" ann ", 3, {"args": ["k", 1], "kwargs": {}}, name=TASK), every=3600)
    edit(admin_client, "s", cron="", every="60", args='["k", 1]', user=" ann ")
    schedule = queue.schedules.get("s")
    assert (schedule.every, schedule.task["user_id"]) == (60, " ann ")
    edit(admin_client, "s", cron="", every="60", args='["k", 1]', user=" bob ")
    assert queue.schedules.get("s").task["user_id"] == "bob"


def test_an_expiry_is_kept_changed_and_removed(admin_client: Client, queue: FairQueue) -> None:
    make_schedule(queue, payload={"args": ["x"], "kwargs": {}}, expires=30)
    changes = {"user": "ann", "priority": "NORMAL", "cron": "", "every": "90", "args": ""}
    for given, expected in (("30", 30.0), ("45.5", 45.5), ("", None)):
        edit(admin_client, "a", **changes, expires=given)
        schedule = queue.schedules.get("a")
        assert (schedule.every, schedule.expires) == (90, expected)
    edit(admin_client, "a", **changes, expires="0")
    assert queue.schedules.get("a").expires is None


def test_the_form_hides_arguments_and_keeps_the_arguments_left_empty(admin_client: Client, queue: FairQueue) -> None:
    add(admin_client, args='["acme", "geheim"]')
    text = read(admin_client, url(edit="nightly"))
    assert "geheim" not in text
    assert "left empty, they stay as they are" in text
    edit(admin_client, "nightly", args="", user="bob")
    task = queue.schedules.get("nightly").task
    assert (task["user_id"], task["payload"]) == ("bob", {"args": ["acme", "geheim"], "kwargs": {}})
    edit(admin_client, "nightly", args='["new", 1]', user="bob")
    assert queue.schedules.get("nightly").task["payload"]["args"] == ["new", 1]


def test_a_schedule_of_a_bare_payload_keeps_it_when_its_time_is_changed(admin_client: Client, queue: FairQueue) -> None:
    queue.schedules.add("bare", task=Task.create("ann", 3, [1, 2]), every=60)
    edit(admin_client, "bare", task="", args="", user="ann", priority="NORMAL", cron="", every="120")
    assert queue.schedules.get("bare").every == 120
    assert queue.schedules.get("bare").task["payload"] == [1, 2]
    answer = edit(admin_client, "bare", task="", args="[1]", user="ann", priority="NORMAL")
    assert "no task named ''" in answer.context["form"].errors["args"][0]


def test_a_schedule_from_the_settings_is_changed_until_the_settings_change(
    admin_client: Client, queue: FairQueue, settings: Settings
) -> None:
    declared = {"task": TASK, "cron": "0 1 * * *", "args": ["acme", 1]}
    settings.FAIRQUE = {**settings.FAIRQUE, "SCHEDULES": {"report": declared}}
    sync_schedules()
    schedules = get_queue().schedules
    assert "declared in the settings" in read(admin_client, url(edit="report"))
    edit(admin_client, "report", args="", cron="0 2 * * *", user="acme", priority="NORMAL")
    sync_schedules()
    assert schedules.get("report").cron == "0 2 * * *"
    assert "a worker that starts adds it again" in act(admin_client, "remove", "report").content.decode()


def test_a_schedule_that_is_gone_leads_to_the_list(admin_client: Client, queue: FairQueue) -> None:
    assert "has no schedule 'gone'" in led_to(admin_client, url(edit="gone"), "schedules")
    assert "has no schedule 'gone'" in messages_of(edit(admin_client, "gone"))


class TestActs:
    @pytest.fixture(autouse=True)
    def one(self, queue: FairQueue) -> None:
        make_schedule(queue, every=3600)

    def test_a_pause_has_a_note_and_an_end(self, admin_client: Client, queue: FairQueue) -> None:
        message = messages_of(act(admin_client, "pause", "a", note=HOSTILE, pause_for="2h"))
        assert message.startswith("Schedule a is paused: it enqueues no tasks at its run times.")
        pause = queue.schedules.get("a").get_pause(time.time())
        assert pause is not None
        assert (pause.note, 7100 < (pause.until or 0) - time.time() < 7300) == (HOSTILE, True)
        text = read(admin_client, url())
        assert html.escape(HOSTILE) in text
        assert HOSTILE not in text
        assert len(rows(admin_client)["a"]["next"]) == 5

    def test_a_schedule_is_run_paused_and_resumed(self, admin_client: Client, queue: FairQueue) -> None:
        text = messages_of(act(admin_client, "run", "a"))
        assert text == f"Schedule a: task {pop(queue).task_id} was enqueued."
        assert str(AuditEntry.objects.get()) == "default: a"
        for action in ("pause", "resume"):
            act(admin_client, action, "a")
            assert queue.schedules.get("a").enabled is (action == "resume")
        assert AuditEntry.objects.count() == 3

    def test_a_schedule_is_removed_after_a_question(self, admin_client: Client, queue: FairQueue) -> None:
        question = act(admin_client, "remove", "a")
        assert "Schedule a will be removed: Every 1 h." in question.content.decode()
        assert queue.schedules.get("a").enabled
        assert not AuditEntry.objects.exists()
        fields = dict(question.context["pairs"])
        assert messages_of(act(admin_client, "remove", confirm="yes", **fields)) == "Schedule a was removed."
        assert queue.schedules.list() == []
        assert str(AuditEntry.objects.get()) == "default: a"

    def test_an_action_on_a_schedule_that_is_gone_changes_nothing(self, admin_client: Client, queue: FairQueue) -> None:
        for action in ("run", "pause", "resume", "remove"):
            assert "has no schedule 'gone'" in messages_of(act(admin_client, action, "gone"))
        assert not AuditEntry.objects.exists()


def test_a_preview_of_a_typed_schedule_needs_no_queue_server(admin_client: Client, settings: Settings) -> None:
    settings.FAIRQUE = {"REDIS": {"URL": "redis://127.0.0.1:1/0"}}
    text = read(admin_client, url(preview="1", cron="0 9 * * 1-5", timezone="Asia/Tokyo"))
    assert "At 09:00 on Monday through Friday" in text
    assert text.count("T09:00:00+09:00") == 5
    assert "<html" not in text
    assert "Every 5 min" in read(admin_client, url(preview="1", every="300", timezone="UTC"))
    assert read(admin_client, url(preview="1", timezone="UTC")).strip() == ""


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"cron": "nightly"}, "expected five fields"),
        ({"cron": "0 0 30 2 *"}, "never fires"),
        ({"cron": "0 9 * * *", "every": "5"}, "one of"),
        ({"every": "0"}, "from 1 to ten years"),
        ({"every": "1e999"}, "Enter a number"),
        ({"cron": "0 9 * * *", "timezone": "Moon/Tranquility"}, "Moon/Tranquility"),
        ({"cron": f"{HOSTILE} * * * *"}, "&lt;script&gt;"),
        ({"cron": "9" * 5000}, "at most 200 characters"),
    ],
)
def test_a_preview_explains_a_mistake(
    admin_client: Client, queue: FairQueue, fields: dict[str, str], words: str
) -> None:
    text = admin_client.get(url(preview="1", **{"timezone": "UTC", **fields})).content.decode()
    assert words in text
    assert "fq-error" in text
    assert HOSTILE not in text


def test_the_form_of_a_schedule_has_its_preview(admin_client: Client, queue: FairQueue) -> None:
    make_schedule(queue, cron="0 9 * * *", timezone="Asia/Tokyo")
    text = read(admin_client, url(edit="a"))
    assert text.count("T09:00:00+09:00") == 5
    assert "django_fairque/form_preview.js" in text
    assert "form_preview.js" not in read(admin_client, url())


def test_a_preview_needs_the_permission_to_change_schedules(client: Client, queue: FairQueue) -> None:
    log_in(client, "view_schedule")
    assert client.get(url(preview="1", every="300")).status_code == 403
