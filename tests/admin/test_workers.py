"""The page of workers: how they are, and what can be asked of them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.urls import reverse

from django_fairque.admin.pages.workers import WORKERS_PER_PAGE
from django_fairque.engine.inspection.worker_activity import EndReason, ProcessDeath, ReportedTask, encode_activity
from django_fairque.worker.common.options import WorkerOptions
from django_fairque.worker.leases.heartbeat import worker_info
from tests.admin.page_reader import messages_of, said

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django.test import Client
    from pytest_django import Settings

    from django_fairque.engine.leasing.lease_ops import WorkerCommand
    from django_fairque.engine.queue.queue import FairQueue

pytestmark = pytest.mark.django_db

HOSTILE = "<script>alert(1)</script>"


def beat_with(
    queue: FairQueue, *slots: tuple[list[str], ReportedTask | None], deaths: Sequence[ProcessDeath] = ()
) -> None:
    """A heartbeat with a report about slots."""
    info = worker_info(
        WorkerOptions("w1", queues=("default",), concurrency=len(slots)),
        done=0,
        running=0,
        status="working",
        activity=encode_activity(time.time(), slots),
        deaths=deaths,
    )
    queue.heartbeat("w1", info)


def url(**query: str) -> str:
    return reverse("admin:django_fairque_workers", query=query)


def beat(queue: FairQueue, worker: str = "w1", *, status: str = "working", **options: Any) -> WorkerCommand | None:
    """A heartbeat as a worker sends it; what it is told."""
    known = {"queues": ("default", "mail"), "users": ("ann", "bob"), "steal": ("cid",), "concurrency": 4, **options}
    info = worker_info(WorkerOptions(worker, **known), done=7, running=2, status=status)
    return queue.heartbeat(worker, info).command


def act(client: Client, action: str, worker: str = "w1", **fields: str) -> Any:
    return client.post(url(), {"action": action, "worker": worker, **fields}, follow=True)


def test_tells_what_the_heartbeat_told(admin_client: Client, queue: FairQueue) -> None:
    beat(queue)
    text = admin_client.get(url()).content.decode()
    for words in (
        "w1",
        "working",
        "2</bdi></a> / 4",
        "ann, bob",
        "steals from cid",
        "default,mail",
        " MiB",
        "Python 3.",
        " ago",
    ):
        assert words in text
    info = queue.workers()[0].info
    assert f"{info['host']}, process {info['pid']}" in text
    assert info["version"] in text


def test_shows_the_version_of_the_projects_code(admin_client: Client, queue: FairQueue, settings: Settings) -> None:
    settings.FAIRQUE = {**settings.FAIRQUE, "CODE_VERSION": "2026-11 <b>&"}
    beat(queue)
    queue.heartbeat("w2", {"code_version": "x" * 100_000})
    html = admin_client.get(url()).content.decode()
    assert "2026-11 &lt;b&gt;&amp;<br>" in html
    assert "x" * 100 in html
    assert "x" * 101 not in html


def test_everyone_is_said_so(admin_client: Client, queue: FairQueue) -> None:
    beat(queue, users="*", steal="*")
    text = admin_client.get(url()).content.decode()
    assert "everyone" in text
    assert "steals from everyone" in text


def test_one_whose_leases_have_ended_is_silent(admin_client: Client, queue: FairQueue) -> None:
    queue.heartbeat("slow", {"lease": "60"}, now=time.time() - 40)
    queue.heartbeat("gone", {"lease": "10"}, now=time.time() - 40)
    rows = {row.record.worker: row for row in admin_client.get(url()).context["table"]}
    # The engine's clock never goes back, so the second beat is as old as the first.
    assert rows["gone"].status == "silent"
    assert rows["slow"].status == "–"
    assert 39 < rows["gone"].age < 60


def test_one_of_an_older_version_is_shown_with_dashes(admin_client: Client, queue: FairQueue) -> None:
    queue.heartbeat("old", {})
    (row,) = admin_client.get(url()).context["table"]
    assert (row.status, row.memory_bytes, row.up, row.pending_command, row.is_silent) == ("–", None, None, "", False)


def test_pages_follow_each_other(admin_client: Client, queue: FairQueue) -> None:
    for number in range(WORKERS_PER_PAGE + 2):
        queue.heartbeat(f"w{number}", {})
    first = admin_client.get(url())
    assert len(first.context["table"]) == WORKERS_PER_PAGE
    second = admin_client.get(first.context["next"])
    assert [row.record.worker for row in second.context["table"]] == [f"w{WORKERS_PER_PAGE + n}" for n in range(2)]
    assert (second.context["next"], second.context["first"]) == ("", url(queue="default"))


def test_names_are_escaped(admin_client: Client, queue: FairQueue) -> None:
    queue.heartbeat(HOSTILE, {"host": HOSTILE, "status": HOSTILE, "users": HOSTILE, "queues": HOSTILE})
    for answer in (admin_client.get(url()), act(admin_client, "stop", HOSTILE), act(admin_client, "drain", HOSTILE)):
        assert "<script>alert" not in answer.content.decode()
        assert "&lt;script&gt;" in answer.content.decode()


def test_drain_and_work(admin_client: Client, queue: FairQueue) -> None:
    beat(queue)
    assert "Worker w1 will drain" in messages_of(act(admin_client, "drain"))
    assert admin_client.get(url()).context["table"][0].pending_command == "drain requested"
    told = beat(queue, status="draining")
    assert told is not None
    assert told.kind == "drain"
    text = admin_client.get(url()).content.decode()
    assert "drain requested" not in text
    assert 'value="work"' in text
    assert "will work again" in messages_of(act(admin_client, "work"))
    again = beat(queue)
    assert again is not None
    assert again.kind == "work"
    assert [entry.object_id for entry in LogEntry.objects.all()] == ["default: w1"] * 2


def test_stop_asks_first(admin_client: Client, queue: FairQueue) -> None:
    beat(queue)
    question = act(admin_client, "stop")
    assert "with all its processes" in question.content.decode()
    assert beat(queue) is None
    assert not LogEntry.objects.exists()
    fields = {**dict(question.context["pairs"]), "action": "stop", "confirm": "yes"}
    answer = admin_client.post(url(), fields, follow=True)
    assert "Worker w1 will stop" in messages_of(answer)
    told = beat(queue)
    assert told is not None
    assert told.kind == "stop"
    assert admin_client.get(url()).context["table"][0].pending_command == "stop requested"
    beat(queue, status="stopping")
    assert admin_client.get(url()).context["table"][0].pending_command == ""
    assert LogEntry.objects.get().object_id == "default: w1"


def test_one_that_is_gone_is_told(admin_client: Client, queue: FairQueue) -> None:
    for action in ("drain", "work", "stop"):
        assert "Worker w9 is gone" in messages_of(act(admin_client, action, "w9", confirm="yes"))
    assert queue.workers() == []
    assert not LogEntry.objects.exists()


def test_who_may_only_look_asks_for_nothing(client: Client, queue: FairQueue) -> None:
    beat(queue)
    looker = User.objects.create_user("looker", is_staff=True)
    looker.user_permissions.add(Permission.objects.get(codename="view_worker"))
    client.force_login(looker)
    text = client.get(url()).content.decode()
    assert 'method="post"' not in text[text.index('id="fq-content"') :]
    for action in ("drain", "work", "stop"):
        assert client.post(url(), {"action": action, "worker": "w1", "confirm": "yes"}).status_code == 403
    assert beat(queue) is None


def test_slots_show_what_they_run_for_whom_and_how_long(admin_client: Client, queue: FairQueue) -> None:
    task = ReportedTask("id/1", "shop.send", HOSTILE, time.time() - 75)
    beat_with(
        queue,
        ([""] * 45 + [HOSTILE] * 15, task),
        ([""] * 60, None),
        (["ann"] * 60, ReportedTask("b", "", "ann", time.time(), 3)),
    )
    response = admin_client.get(url())
    text = response.content.decode()
    first, second, batch = response.context["slots"]
    assert (first.name, first.user_id, first.utilization, first.is_busy) == ("shop.send", HOSTILE, "25 %", True)
    assert 74 < first.seconds < 80
    assert (second.is_busy, second.seconds, second.utilization) == (False, None, "0 %")
    assert batch.count == 3
    assert "3 tasks" in text
    assert reverse("admin:django_fairque_task", args=["id_2F1"]) in text
    assert HOSTILE not in text
    assert "41.7 % busy" in text


def test_slots_hide_tasks_from_users_who_may_not_see_them(client: Client, queue: FairQueue) -> None:
    beat_with(
        queue,
        (["ann-secret"] * 60, ReportedTask("id-1", "shop.send", "ann-secret", time.time())),
        deaths=[ProcessDeath(time.time() - 5, "w1.0.1", EndReason.SIGNAL, 9, ("id-2",))],
    )
    user = User.objects.create_user("viewer", password="x", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_worker"))
    client.force_login(user)
    text = client.get(url()).content.decode()
    assert "a task" in text
    assert "SIGKILL" in text
    for hidden in ("ann-secret", "shop.send", "id-1", "id-2"):
        assert hidden not in text


def test_processes_that_died_are_listed_with_the_reason(admin_client: Client, queue: FairQueue) -> None:
    now = time.time()
    deaths = [
        ProcessDeath(now - 4000, "w1.0.1", EndReason.SIGNAL, 9),
        ProcessDeath(now - 60, "w1.0.2", EndReason.HARD_LIMIT, 0, ("id-2",)),
        ProcessDeath(now - 30, "w1.0.3", EndReason.EXITED, 3),
        ProcessDeath(now - 20, HOSTILE, EndReason.STOPPED_BY_SIGNAL),
    ]
    beat_with(queue, deaths=deaths)
    response = admin_client.get(url())
    text = response.content.decode()
    assert [row.death.worker for row in response.context["deaths"]] == [HOSTILE, "w1.0.3", "w1.0.2"]
    assert "a task ran beyond its hard time limit" in text
    assert "exited with code 3" in text
    assert reverse("admin:django_fairque_task", args=["id-2"]) in text
    assert HOSTILE not in text


def test_a_damaged_report_leaves_the_worker_in_the_list(admin_client: Client, queue: FairQueue) -> None:
    queue.heartbeat("w1", {"activity": '{"slots": [[1]]}', "deaths": "[[]]", "status": "working"})
    response = admin_client.get(url())
    assert [row.record.worker for row in response.context["table"]] == ["w1"]
    assert (response.context["slots"], response.context["deaths"]) == ([], [])


def test_it_begins_with_whether_a_process_is_stuck(admin_client: Client, queue: FairQueue) -> None:
    queue.heartbeat("w4", {"lease": "30"}, ttl=900, now=time.time() - 300)
    assert "1 of 1 processes is stuck: w4 ( silent for 5 min" in said(admin_client.get(url()).content.decode())
    queue.heartbeat("w4", {"lease": "30"})
    beat_with(queue, (["ann"] * 20, ReportedTask("id-1", "shop.send", "ann", time.time() - 130)))
    text = said(admin_client.get(url()).content.decode())
    assert (
        "No process is stuck: 2 report in time. The task that has run longest: shop.send of ann , for 2 min 1" in text
    )
    beat(queue, "w2")
    queue.heartbeat("w3", {"blocked_by": HOSTILE})
    html = admin_client.get(url()).content.decode()
    assert "1 of 4 processes is stuck: w3 ( event loop blocked by <script>alert(1)</script> )." in said(html)
    assert HOSTILE not in html
