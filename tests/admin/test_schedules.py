"""The page of schedules: what it shows, and everything that can be done there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.urls import reverse

from django_fairque.admin.pages.schedules import SCHEDULES_PER_PAGE
from django_fairque.conf import get_queue
from django_fairque.engine.model.task import Task
from django_fairque.tasks.schedules import sync_schedules
from tests.admin.page_reader import led_to, messages_of
from tests.stored_tasks import remove_task

if TYPE_CHECKING:
    from django.http import HttpResponse
    from django.test import Client
    from pytest_django import Settings
    from redis import Redis

    from django_fairque.engine.queue.queue import FairQueue

pytestmark = pytest.mark.django_db

TASK = "library.tasks.analyse_document"
HOSTILE = "<script>alert(1)</script>"


def url(**query: str) -> str:
    return reverse("admin:django_fairque_schedules", query=query)


def rows(client: Client, **query: str) -> dict[str, Any]:
    return {row["schedule"].name: row for row in client.get(url(**query)).context["table"]}


def act(client: Client, action: str, name: str, **fields: Any) -> HttpResponse:
    return client.post(url(), {"action": action, "name": name, **fields}, follow=True)  # type: ignore[return-value]


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
        "enabled": "on",
    }
    return {"action": "save", **fields, **changes}


def add(client: Client, **changes: Any) -> Any:
    return client.post(url(add="1"), filled(**changes), follow=True)


def edit(client: Client, name: str, **changes: Any) -> Any:
    return client.post(url(edit=name), filled(**changes), follow=True)


class TestTable:
    def test_tells_when_in_words_and_moments_in_the_schedules_zone(
        self, admin_client: Client, queue: FairQueue
    ) -> None:
        task = Task.create("ann", 3, {"args": ["geheim"], "kwargs": {}}, name=TASK)
        queue.schedules.add("a", task=task, cron="0 9 * * 1-5", timezone="Asia/Tokyo")
        queue.schedules.add("b", task=task, every=300, now=2e9, enabled=False)
        shown = rows(admin_client)
        assert (shown["a"]["when"], shown["b"]["when"]) == ("At 09:00 on Monday through Friday", "Every 5 min")
        assert (shown["a"]["schedule"].last, shown["b"]["schedule"].next_at) == (None, None)
        text = admin_client.get(url()).content.decode()
        assert "T09:00:00+09:00" in text
        assert ' 09:00:00 JST">' in text
        assert "disabled" in text
        assert "geheim" not in text, "arguments may be secrets"

    def test_knows_when_one_fired_last(self, admin_client: Client, queue: FairQueue) -> None:
        queue.schedules.add("a", task=Task.create("ann", 3, 1), every=60, start=1.9e9, now=1.9e9)
        queue.schedules.fire_due(now=1.9e9 + 61)
        assert "T17:47:40+00:00" in admin_client.get(url()).content.decode(), "1.9e9 + 60"

    def test_shows_the_last_task_and_what_became_of_it(self, admin_client: Client, queue: FairQueue) -> None:
        task = Task.create("ann", 3, {"args": [], "kwargs": {}}, name=TASK)
        for name in ("a", "b"):
            queue.schedules.add(name, task=task, every=60, start=1.9e9, now=1.9e9)
        queue.schedules.fire_due(now=1.9e9 + 61)
        lease = queue.pop("w", ["ann"])
        assert lease is not None
        queue.finish(lease)
        shown = rows(admin_client)
        assert sorted(row["last_task"].state.value for row in shown.values()) == ["finished", "queued"]
        (link,) = (row["last_url"] for row in shown.values() if row["last_task"].task_id == lease.task_id)
        assert f'<a href="{link}">finished</a>' in admin_client.get(url()).content.decode()
        assert lease.task_id in admin_client.get(link).content.decode()

    def test_says_that_the_last_task_is_gone(self, admin_client: Client, queue: FairQueue, redis: Redis) -> None:
        queue.schedules.add("a", task=Task.create("ann", 3, 1), every=60, start=1.9e9, now=1.9e9)
        queue.schedules.fire_due(now=1.9e9 + 61)
        last = queue.schedules.get("a").last
        assert last is not None
        remove_task(redis, last.task_id)
        assert rows(admin_client)["a"]["last_task"] is None
        assert "its task is not kept any more" in admin_client.get(url()).content.decode()
        redis.flushall()

    def test_shows_the_next_five_run_times(self, admin_client: Client, queue: FairQueue) -> None:
        task = Task.create("ann", 3, 1)
        queue.schedules.add("a", task=task, cron="0 9 * * *", timezone="Asia/Tokyo")
        queue.schedules.add("b", task=task, every=60, enabled=False)
        shown = rows(admin_client)
        assert (len(shown["a"]["next"]), shown["b"]["next"]) == (5, [])
        assert admin_client.get(url()).content.decode().count("T09:00:00+09:00") == 6

    def test_one_that_another_version_has_written_is_shown_as_it_is(
        self, admin_client: Client, queue: FairQueue, redis: Redis
    ) -> None:
        queue.schedules.add("a", task=Task.create("ann", 3, 1), cron="0 9 * * *")
        written = redis.hget("fq:{default:0}:schedules", "a")
        assert isinstance(written, bytes)
        strange = written.replace(b"0 9 * * *", b"0 9 @full-moon").replace(b"UTC", b"Moon/Tranquility")
        redis.hset("fq:{default:0}:schedules", "a", strange)
        row = rows(admin_client)["a"]
        assert row["when"] == "0 9 @full-moon"
        assert "T09:00:00+00:00" in admin_client.get(url()).content.decode()

    def test_pages_follow_each_other(self, admin_client: Client, queue: FairQueue) -> None:
        for number in range(SCHEDULES_PER_PAGE + 2):
            queue.schedules.add(f"s{number:03}", task=Task.create("ann", 3, 1), every=60)
        first = admin_client.get(url())
        assert len(first.context["table"]) == SCHEDULES_PER_PAGE
        second = admin_client.get(first.context["next"])
        assert [row["schedule"].name for row in second.context["table"]] == [
            f"s{SCHEDULES_PER_PAGE + n:03}" for n in range(2)
        ]
        assert (second.context["next"], second.context["first"]) == ("", url(queue="default"))

    def test_names_are_escaped(self, admin_client: Client, queue: FairQueue) -> None:
        queue.schedules.add(HOSTILE, task=Task.create(HOSTILE, 3, 1, name=HOSTILE), every=60)
        for answer in (
            admin_client.get(url()),
            admin_client.get(url(edit=HOSTILE)),
            act(admin_client, "remove", HOSTILE),
            act(admin_client, "disable", HOSTILE),
        ):
            assert "<script>alert" not in answer.content.decode()
            assert "&lt;script&gt;" in answer.content.decode()

    def test_who_may_only_look_gets_no_form(self, client: Client, queue: FairQueue) -> None:
        queue.schedules.add("a", task=Task.create("ann", 3, 1), every=60)
        looker = User.objects.create_user("looker", is_staff=True)
        looker.user_permissions.add(Permission.objects.get(codename="view_schedule"))
        client.force_login(looker)
        for query in ({}, {"add": "1"}, {"edit": "a"}):
            text = client.get(url(**query)).content.decode()
            content = text[text.index('id="fq-content"') :]
            assert 'method="post"' not in content
            assert "Add a schedule" not in content
        for action in ("save", "run", "enable", "disable", "remove"):
            answer = client.post(url(), filled(action=action, name="a", confirm="yes"))
            assert answer.status_code == 403
        assert [each.name for each in queue.schedules.list()] == ["a"]
        assert queue.get_stats().totals.get("pushed", 0) == 0


class TestAdding:
    def test_by_cron(self, admin_client: Client, queue: FairQueue) -> None:
        answer = add(admin_client, user="acme", priority="HIGH", kwargs="{}")
        assert messages_of(answer) == "Schedule nightly was added: At 03:00 on Monday through Friday."
        schedule = queue.schedules.get("nightly")
        assert (schedule.cron, schedule.timezone, schedule.missed) == ("0 3 * * 1-5", "Europe/Berlin", "one")
        assert (schedule.enabled, schedule.source) == (True, "admin")
        assert schedule.task["payload"] == {"args": ["acme", 42], "kwargs": {}}
        assert (schedule.task["user_id"], schedule.task["name"]) == ("acme", TASK)
        assert schedule.make_task(None).priority.name == "HIGH"
        entry = LogEntry.objects.get()
        assert (entry.object_id, entry.change_message) == ("default: nightly", messages_of(answer))

    def test_by_interval_switched_off(self, admin_client: Client, queue: FairQueue) -> None:
        add(admin_client, cron="", every="90", enabled="")
        schedule = queue.schedules.get("nightly")
        assert (schedule.every, schedule.cron, schedule.enabled, schedule.next_at) == (90, None, False, None)

    def test_the_form_begins_with_the_projects_zone_and_the_known_tasks(
        self, admin_client: Client, queue: FairQueue
    ) -> None:
        text = admin_client.get(url(add="1")).content.decode()
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
            ("args", {"args": "["}, "Expected a JSON list"),
            ("args", {"args": '{"a": 1}'}, "Expected a JSON list, got {"),
            ("args", {"args": "[]"}, "missing a required argument"),
            ("kwargs", {"kwargs": "[1]"}, "Expected a JSON object, got [1]"),
            ("kwargs", {"args": "", "kwargs": '{"colour": 1}'}, "argument"),
        ],
    )
    def test_a_mistake_stands_next_to_its_field_and_the_rest_is_kept(
        self, admin_client: Client, queue: FairQueue, field: str, changes: dict[str, str], words: str
    ) -> None:
        answer = add(admin_client, user="keep-me", **changes)
        assert list(answer.context["form"].errors) == [field]
        assert words in answer.context["form"].errors[field][0]
        text = answer.content.decode()
        assert 'class="fq-error" role="alert"' in text
        assert 'value="keep-me"' in text
        assert queue.schedules.list() == []
        assert not LogEntry.objects.exists()

    def test_one_of_that_name_is_not_overwritten(self, admin_client: Client, queue: FairQueue) -> None:
        add(admin_client)
        answer = add(admin_client, cron="1 1 * * *")
        assert "already" in answer.context["form"].errors["name"][0]
        assert queue.schedules.get("nightly").cron == "0 3 * * 1-5"

    def test_too_many_are_refused(
        self, admin_client: Client, queue: FairQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("django_fairque.engine.schedules.schedule_ops.MAX_SCHEDULES", 0)
        assert "remove some" in add(admin_client).context["form"].errors["name"][0]


class TestEditing:
    def test_changes_the_timing_and_leaves_the_task_as_it_was(self, admin_client: Client, queue: FairQueue) -> None:
        task = Task.create("ann", 2, {"args": ["k", 1], "kwargs": {}}, name=TASK, max_retries=9, timeout=7)
        before = queue.schedules.add("a", task=task, every=60, grace=5, source="command")
        answer = edit(admin_client, "a", cron="0 4 * * *", args="", user="ann", priority=task.priority.name)
        assert messages_of(answer) == "Schedule a was changed: At 04:00 every day."
        after = queue.schedules.get("a")
        assert after.task == before.task
        assert (after.cron, after.every, after.grace, after.source) == ("0 4 * * *", None, 5, "command")
        assert [each.name for each in queue.schedules.list()] == ["a"]

    def test_its_user_stays_who_it_is(self, admin_client: Client, queue: FairQueue) -> None:
        queue.schedules.add("s", task=Task.create(" ann ", 3, {"args": ["k", 1], "kwargs": {}}, name=TASK), every=3600)
        edit(admin_client, "s", cron="", every="60", args='["k", 1]', user=" ann ")
        schedule = queue.schedules.get("s")
        assert (schedule.every, schedule.task["user_id"]) == (60, " ann ")
        edit(admin_client, "s", cron="", every="60", args='["k", 1]', user=" bob ")
        assert queue.schedules.get("s").task["user_id"] == "bob"

    def test_an_expiry_is_kept_changed_and_taken_off(self, admin_client: Client, queue: FairQueue) -> None:
        queue.schedules.add(
            "a", task=Task.create("ann", 3, {"args": ["x"], "kwargs": {}}, name=TASK), every=60, expires=30
        )
        changes = {"user": "ann", "priority": "NORMAL", "cron": "", "every": "90", "args": ""}
        for given, expected in (("30", 30.0), ("45.5", 45.5), ("", None)):
            edit(admin_client, "a", **changes, expires=given)
            schedule = queue.schedules.get("a")
            assert (schedule.every, schedule.expires) == (90, expected)
        edit(admin_client, "a", **changes, expires="0")
        assert queue.schedules.get("a").expires is None

    def test_shows_no_arguments_and_keeps_those_that_are_left_empty(
        self, admin_client: Client, queue: FairQueue
    ) -> None:
        add(admin_client, args='["acme", "geheim"]')
        text = admin_client.get(url(edit="nightly")).content.decode()
        assert "geheim" not in text
        assert "left empty, they stay as they are" in text
        edit(admin_client, "nightly", args="", user="bob")
        task = queue.schedules.get("nightly").task
        assert (task["user_id"], task["payload"]) == ("bob", {"args": ["acme", "geheim"], "kwargs": {}})
        edit(admin_client, "nightly", args='["new", 1]', user="bob")
        assert queue.schedules.get("nightly").task["payload"]["args"] == ["new", 1]

    def test_a_bare_payload_stays_and_may_get_another_time(self, admin_client: Client, queue: FairQueue) -> None:
        queue.schedules.add("bare", task=Task.create("ann", 3, [1, 2]), every=60)
        edit(admin_client, "bare", task="", args="", user="ann", priority="NORMAL", cron="", every="120")
        assert queue.schedules.get("bare").every == 120
        assert queue.schedules.get("bare").task["payload"] == [1, 2]
        answer = edit(admin_client, "bare", task="", args="[1]", user="ann", priority="NORMAL")
        assert "no task named ''" in answer.context["form"].errors["args"][0]

    def test_one_from_the_settings_stays_theirs(
        self, admin_client: Client, queue: FairQueue, settings: Settings
    ) -> None:
        declared = {"task": TASK, "cron": "0 1 * * *", "args": ["acme", 1]}
        settings.FAIRQUE = {**settings.FAIRQUE, "SCHEDULES": {"report": declared}}
        sync_schedules()
        schedules = get_queue().schedules
        assert "declared in the settings" in admin_client.get(url(edit="report")).content.decode()
        edit(admin_client, "report", args="", cron="0 2 * * *", user="acme", priority="NORMAL")
        sync_schedules()
        assert schedules.get("report").cron == "0 2 * * *"
        assert "a worker that starts adds it again" in act(admin_client, "remove", "report").content.decode()

    def test_one_that_is_gone_leads_to_the_others(self, admin_client: Client, queue: FairQueue) -> None:
        assert "has no schedule 'gone'" in led_to(admin_client, url(edit="gone"), "schedules")
        assert "has no schedule 'gone'" in messages_of(edit(admin_client, "gone"))


class TestActs:
    @pytest.fixture(autouse=True)
    def one(self, queue: FairQueue) -> None:
        queue.schedules.add("a", task=Task.create("ann", 3, 1), every=3600)

    def test_run_now(self, admin_client: Client, queue: FairQueue) -> None:
        text = messages_of(act(admin_client, "run", "a"))
        lease = queue.pop("w")
        assert lease is not None
        assert text == f"Schedule a: task {lease.task_id} was enqueued."
        assert LogEntry.objects.get().object_id == "default: a"

    def test_disable_and_enable(self, admin_client: Client, queue: FairQueue) -> None:
        act(admin_client, "disable", "a")
        assert not queue.schedules.get("a").enabled
        act(admin_client, "enable", "a")
        assert queue.schedules.get("a").enabled
        assert LogEntry.objects.count() == 2

    def test_remove_asks_first(self, admin_client: Client, queue: FairQueue) -> None:
        question = act(admin_client, "remove", "a")
        assert "Schedule a will be removed: Every 1 h." in question.content.decode()
        assert queue.schedules.get("a").enabled
        assert not LogEntry.objects.exists()
        fields = dict(question.context["pairs"])  # type: ignore[attr-defined]
        assert messages_of(act(admin_client, "remove", confirm="yes", **fields)) == "Schedule a was removed."
        assert queue.schedules.list() == []
        assert LogEntry.objects.get().object_id == "default: a"

    def test_one_that_is_gone_is_told(self, admin_client: Client, queue: FairQueue) -> None:
        for action in ("run", "enable", "disable", "remove"):
            assert "has no schedule 'gone'" in messages_of(act(admin_client, action, "gone"))
        assert not LogEntry.objects.exists()


class TestPreview:
    def test_of_what_is_typed(self, admin_client: Client, queue: FairQueue) -> None:
        answer = admin_client.get(url(preview="1", cron="0 9 * * 1-5", timezone="Asia/Tokyo"))
        text = answer.content.decode()
        assert "At 09:00 on Monday through Friday" in text
        assert text.count("T09:00:00+09:00") == 5
        assert "<html" not in text
        assert "Every 5 min" in admin_client.get(url(preview="1", every="300", timezone="UTC")).content.decode()

    @pytest.mark.parametrize(
        ("fields", "said"),
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
    def test_of_a_mistake(self, admin_client: Client, queue: FairQueue, fields: dict[str, str], said: str) -> None:
        text = admin_client.get(url(preview="1", **{"timezone": "UTC", **fields})).content.decode()
        assert said in text
        assert "fq-error" in text
        assert HOSTILE not in text

    def test_of_nothing(self, admin_client: Client, queue: FairQueue) -> None:
        assert admin_client.get(url(preview="1", timezone="UTC")).content.decode().strip() == ""

    def test_is_in_the_form_of_a_known_schedule(self, admin_client: Client, queue: FairQueue) -> None:
        queue.schedules.add("a", task=Task.create("ann", 3, 1), cron="0 9 * * *", timezone="Asia/Tokyo")
        text = admin_client.get(url(edit="a")).content.decode()
        assert text.count("T09:00:00+09:00") == 5
        assert "django_fairque/form_preview.js" in text
        assert "form_preview.js" not in admin_client.get(url()).content.decode()

    def test_needs_the_permission_to_change(self, client: Client, queue: FairQueue) -> None:
        viewer = User.objects.create_user("viewer", is_staff=True)
        viewer.user_permissions.add(Permission.objects.get(codename="view_schedule"))
        client.force_login(viewer)
        assert client.get(url(preview="1", every="300")).status_code == 403

    def test_needs_no_server(self, admin_client: Client, settings: Settings) -> None:
        settings.FAIRQUE = {"REDIS": {"URL": "redis://127.0.0.1:1/0"}}
        assert "Every 5 min" in admin_client.get(url(preview="1", every="300", timezone="UTC")).content.decode()
