"""The page of workers: their state, and the commands for them."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from django.urls import reverse

from django_fairque.admin.pages.workers import WORKERS_PER_PAGE
from django_fairque.engine.inspection.worker_activity import (
    UNRESPONSIVE_FIELD,
    EndReason,
    ProcessDeath,
    ReportedTask,
    encode_activity,
)
from django_fairque.models import AuditEntry
from django_fairque.worker.common.options import WorkerOptions
from django_fairque.worker.leases.heartbeat import worker_info
from tests.admin.page_reader import log_in, messages_of, page_url, post, read, words_of
from tests.fixture_types import Client, FairQueue, Settings

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


url = partial(page_url, "workers")


def beat(queue: FairQueue, worker: str = "w1", *, status: str = "working", **options: Any) -> str | None:
    """Send a heartbeat as a worker does. Return the command that the worker gets."""
    known = {"queues": ("default", "mail"), "users": ("ann", "bob"), "steal": ("cid",), "concurrency": 4, **options}
    info = worker_info(WorkerOptions(worker, **known), done=7, running=2, status=status)
    command = queue.heartbeat(worker, info).command
    return command.kind if command else None


def act(client: Client, action: str, worker: str = "w1", **fields: str) -> Any:
    return post(client, url(), action=action, worker=worker, **fields)


def test_a_worker_is_shown_with_the_figures_of_its_heartbeat(admin_client: Client, queue: FairQueue) -> None:
    beat(queue)
    info = queue.workers()[0].info
    shown = [
        "w1",
        "working",
        "2</bdi></a> / 4",
        "ann, bob",
        "steals from cid",
        "default,mail",
        " MiB",
        "Python 3.",
        " ago",
    ]
    text = read(admin_client, url())
    for words in (*shown, f"{info['host']}, process {info['pid']}", info["version"]):
        assert words in text


def test_the_page_of_workers_shows_reserved_slots(admin_client: Client, queue: FairQueue) -> None:
    beat(queue)
    assert "reserved" not in read(admin_client, url())
    beat(queue, reserve={"urgent": 1, "normal": 2})
    assert "2 / 4 reserved: urgent 1, normal 2 " in words_of(read(admin_client, url()))


def test_a_worker_is_shown_with_the_version_of_the_project_s_code(
    admin_client: Client, queue: FairQueue, settings: Settings
) -> None:
    settings.FAIRQUE = {**settings.FAIRQUE, "CODE_VERSION": "2026-11 <b>&"}
    beat(queue)
    queue.heartbeat("w2", {"code_version": "x" * 100_000})
    html = read(admin_client, url())
    assert "2026-11 &lt;b&gt;&amp;<br>" in html
    assert "x" * 100 in html
    assert "x" * 101 not in html


def test_a_worker_for_all_users_is_marked(admin_client: Client, queue: FairQueue) -> None:
    beat(queue, users="*", steal="*")
    assert "steals from everyone" in read(admin_client, url())


def test_a_worker_whose_leases_have_ended_is_silent(admin_client: Client, queue: FairQueue) -> None:
    queue.heartbeat("slow", {"lease": "60"}, now=time.time() - 40)
    queue.heartbeat("gone", {"lease": "10"}, now=time.time() - 40)
    rows = {row.record.worker: row for row in admin_client.get(url()).context["table"]}
    # The engine's clock never goes back, so the second beat is as old as the first.
    assert (rows["gone"].status, rows["slow"].status) == ("silent", "–")
    assert 39 < rows["gone"].age < 60


def test_a_worker_of_an_older_version_is_shown_with_dashes(admin_client: Client, queue: FairQueue) -> None:
    queue.heartbeat("old", {})
    (row,) = admin_client.get(url()).context["table"]
    assert (row.status, row.memory_bytes, row.up, row.pending_command, row.is_silent) == ("–", None, None, "", False)


def test_the_list_of_workers_has_pages(admin_client: Client, queue: FairQueue) -> None:
    for number in range(WORKERS_PER_PAGE + 2):
        queue.heartbeat(f"w{number}", {})
    first = admin_client.get(url())
    assert len(first.context["table"]) == WORKERS_PER_PAGE
    second = admin_client.get(first.context["next"])
    assert [row.record.worker for row in second.context["table"]] == [f"w{WORKERS_PER_PAGE + n}" for n in range(2)]
    assert (second.context["next"], second.context["first"]) == ("", url(queue="default"))


def test_a_worker_is_drained_and_then_resumed(admin_client: Client, queue: FairQueue) -> None:
    beat(queue)
    assert "Worker w1 will drain" in messages_of(act(admin_client, "drain"))
    assert pending(admin_client) == "drain requested"
    assert beat(queue, status="draining") == "drain"
    text = read(admin_client, url())
    assert "drain requested" not in text
    assert 'value="work"' in text
    assert "will work again" in messages_of(act(admin_client, "work"))
    assert beat(queue) == "work"
    assert [str(entry) for entry in AuditEntry.objects.all()] == ["default: w1"] * 2


def pending(client: Client) -> str:
    return str(client.get(url()).context["table"][0].pending_command)


def test_a_worker_is_stopped_after_a_question(admin_client: Client, queue: FairQueue) -> None:
    beat(queue)
    question = act(admin_client, "stop")
    assert "with all its processes" in question.content.decode()
    assert beat(queue) is None
    assert not AuditEntry.objects.exists()
    answer = post(admin_client, url(), **{**dict(question.context["pairs"]), "action": "stop", "confirm": "yes"})
    assert "Worker w1 will stop" in messages_of(answer)
    assert beat(queue) == "stop"
    assert pending(admin_client) == "stop requested"
    beat(queue, status="stopping")
    assert pending(admin_client) == ""
    assert str(AuditEntry.objects.get()) == "default: w1"


def test_a_worker_that_is_gone_gets_no_command(admin_client: Client, queue: FairQueue) -> None:
    for action in ("drain", "work", "stop"):
        assert "Worker w9 is gone" in messages_of(act(admin_client, action, "w9", confirm="yes"))
    assert queue.workers() == []
    assert not AuditEntry.objects.exists()


def test_slots_show_their_task_its_user_and_its_run_time(admin_client: Client, queue: FairQueue) -> None:
    task = ReportedTask("id/1", "shop.send", HOSTILE, time.time() - 75, line=f"shop/tasks.py:30 {HOSTILE}")
    beat_with(
        queue,
        ([""] * 45 + [HOSTILE] * 15, task),
        ([""] * 60, None),
        (["ann"] * 60, ReportedTask("b", "", "ann", time.time(), 3)),
    )
    response = admin_client.get(url())
    text = response.content.decode()
    first, second, batch = response.context["slots"]
    assert (first.task.name, first.task.user_id) == ("shop.send", HOSTILE)
    assert (first.utilization, first.is_busy) == ("25 %", True)
    assert 74 < first.seconds < 80
    assert (second.is_busy, second.seconds, second.utilization) == (False, None, "0 %")
    assert batch.task.count == 3
    assert "3 tasks" in text
    assert f"1 min 15 s shop/tasks.py:30 {HOSTILE} 0 s ago 25 %" in re.sub(r"[.\d]+ m?s ago", "0 s ago", words_of(text))
    assert reverse("admin:django_fairque_task", args=["id_2F1"]) in text
    assert HOSTILE not in text
    assert "41.7 % busy" in text


def test_slots_hide_tasks_from_staff_who_may_not_see_them(client: Client, queue: FairQueue) -> None:
    beat_with(
        queue,
        (["ann-secret"] * 60, ReportedTask("id-1", "shop.send", "ann-secret", time.time(), line="shop.py:3 f")),
        deaths=[ProcessDeath(time.time() - 5, "w1.0.1", EndReason.SIGNAL, 9, ("id-2",))],
    )
    log_in(client, "view_worker")
    text = read(client, url())
    assert "a task" in text
    assert "SIGKILL" in text
    for hidden in ("ann-secret", "shop.send", "id-1", "id-2", "shop.py"):
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


def test_the_page_begins_with_the_processes_that_are_stuck(admin_client: Client, queue: FairQueue) -> None:
    queue.heartbeat("w4", {"lease": "30"}, ttl=900, now=time.time() - 300)
    assert "1 of 1 processes is stuck: w4 ( silent for 5 min" in words_of(read(admin_client, url()))
    queue.heartbeat("w4", {"lease": "30"})
    beat_with(
        queue, (["ann"] * 20, ReportedTask("id-1", "shop.send", "ann", time.time() - 130, line="t.py:3 f")), ([], None)
    )
    text = words_of(read(admin_client, url()))
    longest = r"The task that has run longest: shop.send of ann , for 2 min 1\d s\. It is at t\.py:3 f \."
    assert re.search(f"No process is stuck: 2 report in time\\. {longest}", text)
    queue.heartbeat("w1", {UNRESPONSIVE_FIELD: "5.0"})
    assert re.search(r"w1 2 idle, [\d.]+ m?s ago", words_of(read(admin_client, url()))), (
        "it may run another task by now"
    )
    queue.heartbeat("w1", {UNRESPONSIVE_FIELD: ""})
    beat(queue, "w2")
    queue.heartbeat("w3", {"blocked_by": HOSTILE})
    html = read(admin_client, url())
    assert "1 of 4 processes is stuck: w3 ( event loop blocked by <script>alert(1)</script> )." in words_of(html)
    assert HOSTILE not in html
