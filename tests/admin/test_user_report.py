"""The page of a user's report, and its files."""

from __future__ import annotations

import csv
import json
from io import StringIO

import pytest

from django_fairque.engine.model.task import Task
from tests.admin.dead_letters import bury
from tests.admin.page_reader import content_of, led_to, log_in, page_url, read, words_of
from tests.fixture_types import Client, FairQueue
from tests.leases import pop

pytestmark = pytest.mark.django_db

HOSTILE = '=cmd|"/c calc"!A1<script>'


@pytest.fixture
def failures(queue: FairQueue) -> str:
    """Three failures of a hostile user with two errors, and one finished task. The value is the path of its report."""
    for error in ("no such address", "no such address", "password=hunter2 is wrong"):
        bury(queue, error, user_id=HOSTILE)
    bury(queue, "of somebody else", user_id="bob")
    task = bury(queue, "x", user_id=HOSTILE).partition("~")[0]
    queue.dlq.requeue(f"{task}~1")
    queue.finish(pop(queue, "w", [HOSTILE]))
    return page_url("user_report", HOSTILE)


def test_the_page_has_the_sentence_and_the_errors(admin_client: Client, failures: str) -> None:
    assert f'href="{failures}' in read(admin_client, page_url("users", user=HOSTILE))
    text = content_of(read(admin_client, failures))
    assert "<script>" not in text
    words = words_of(text)
    assert "Your 5 tasks that ended since" in words
    assert "4 failed, the errors of 3 are known, 2 different ones, the earliest at" in words
    assert "2 no such address failed shop.send" in words
    assert "The error of 1 dead letter is not known: it was requeued, discarded or removed." in words
    assert "hunter2" not in words
    assert "somebody else" not in words


def test_the_texts_of_errors_need_a_permission(client: Client, failures: str) -> None:
    log_in(client, "view_user")
    for query in ({}, {"download": "csv"}, {"download": "json"}):
        text = read(client, failures, **query)
        assert "no such address" not in text
        assert "4" in text


def test_downloaded_files_contain_no_formulas_for_a_spreadsheet(admin_client: Client, failures: str) -> None:
    answer = admin_client.get(failures, {"download": "csv"})
    assert answer["Content-Disposition"] == 'attachment; filename="report-cmd-c-calc-A1-script.csv"'
    assert answer["Cache-Control"].startswith("private")
    rows = list(csv.DictReader(StringIO(answer.content.decode())))
    assert {row["user"] for row in rows} == {f"'{HOSTILE}"}
    assert [row["kind"] for row in rows] == ["hour"] * 48 + ["day"] * 35 + ["error"] * 2
    assert sum(int(row["dead_letters"]) for row in rows if row["kind"] == "hour") == 4
    content = json.loads(admin_client.get(failures, {"download": "json", "hours": "48"}).content)
    assert (content["user"], content["recent"]["seconds"]) == (HOSTILE, 48 * 3600)


def test_an_unknown_user_has_an_empty_report(admin_client: Client, queue: FairQueue) -> None:
    words = words_of(content_of(read(admin_client, page_url("user_report", "nobody"), hours="x")))
    assert "None of your tasks has ended since" in words
    assert led_to(admin_client, page_url("user_report", "x" * 300), "users")
    assert led_to(admin_client, page_url("user_report", "x" * 300), "users", {"download": "csv"})


def test_the_report_of_a_paused_user_says_that_its_tasks_wait(admin_client: Client, queue: FairQueue) -> None:
    queue.push_batch([Task.create("duff", 3, None) for _ in range(3)])
    assert "; 3 tasks wait now." in read(admin_client, page_url("user_report", "duff"))
    queue.user("duff").pause()
    assert "; 3 tasks wait because your tasks are paused." in read(admin_client, page_url("user_report", "duff"))
    content = json.loads(admin_client.get(page_url("user_report", "duff"), {"download": "json"}).content)
    assert (content["ready"], content["held_by"]) == (3, "user_paused")


@pytest.fixture
def late(queue: FairQueue) -> None:
    """A task of a hostile user that missed its SLA while the user was paused, one that kept its SLA, and one at risk."""
    queue.push(Task.create(HOSTILE, 3, None, name="shop.late", sla=1e-6))
    queue.user(HOSTILE).pause()
    queue.sweep()
    queue.user(HOSTILE).resume()
    queue.push(Task.create("bob", 3, None, name="shop.send", lane="urgent"))
    for lease in queue.pop_batch(2, "w"):
        queue.finish(lease)
    queue.push(Task.create("bob", 3, None, name="shop.send", sla=1e-6))


@pytest.mark.usefixtures("late")
def test_the_page_of_slas_has_kept_and_missed_tasks_with_the_cause(admin_client: Client) -> None:
    text = content_of(read(admin_client, page_url("sla")))
    assert "<script>" not in text
    words = words_of(text)
    assert "normal 0 % without 1 late 0 1 0 1 its user was paused" in words
    assert "urgent 100 % 1 0 0 0 –" in words
    assert "bob 100 % without 1 late 1 0 0 1 –" in words
    assert "shop.late 0 % 0 1 0 0 its user was paused" in words
    assert "hours must be 2 or 24, got 7." in led_to(admin_client, page_url("sla"), "sla", {"hours": "7"})


def test_late_tasks_of_a_paused_user_are_marked_with_their_cause(admin_client: Client, queue: FairQueue) -> None:
    queue.push(Task.create("duff", 3, None, name="shop.send"))
    queue.finish(pop(queue, "w"))
    queue.user("duff").pause()
    queue.push_batch([Task.create("duff", 3, None, name="shop.send", sla=1e-6) for _ in range(2)])
    queue.sweep()
    text = content_of(read(admin_client, page_url("sla")))
    for name in ("normal", "duff", "shop.send"):
        assert f"{name} 100 % without 2 late 1 0 0 2 its user was paused" in words_of(text)
    assert '<strong class="fq-error">2</strong>' in text


@pytest.mark.usefixtures("late")
def test_the_sla_files_have_one_row_per_lane_and_one_per_user_and_one_per_task_name(admin_client: Client) -> None:
    answer = admin_client.get(page_url("sla"), {"download": "csv", "hours": "2"})
    assert answer["Content-Disposition"] == 'attachment; filename="sla-default.csv"'
    rows = {(row["kind"], row["name"]): row for row in csv.DictReader(StringIO(answer.content.decode()))}
    assert set(rows) == {
        *(("lane", "normal"), ("lane", "urgent"), ("user", f"'{HOSTILE}"), ("user", "bob")),
        *(("task", "shop.late"), ("task", "shop.send")),
    }
    assert rows["task", "shop.late"]["cause"] == "user_paused"
    found = json.loads(admin_client.get(page_url("sla"), {"download": "json"}).content)
    assert (found["hours"], len(found["rows"]), found["unlisted_missed"]) == (24, 6, 0)
