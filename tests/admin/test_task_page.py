"""The page of a task first explains its state, and offers the actions that resolve it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from django_fairque.admin.pages.task_page import attempt_bars, last_frame
from django_fairque.engine.inspection.task_logs import LogLine
from django_fairque.engine.inspection.worker_activity import (
    ACTIVITY_FIELD,
    SENT_FIELD,
    UNRESPONSIVE_FIELD,
    ReportedTask,
    encode_activity,
)
from django_fairque.engine.model.records import Attempt, TaskState
from django_fairque.engine.model.task import Task
from tests.admin.page_reader import allow, log_in, page_url, read
from tests.fixture_types import Client, FairQueue
from tests.leases import pop

pytestmark = pytest.mark.django_db


def page(task_id: str) -> str:
    return page_url("task", task_id)


def push(queue: FairQueue, **options: Any) -> None:
    queue.push(Task.create("ann", 3, {"n": 1}, task_id="t", **options))


def fail(queue: FairQueue, delay: float | None = None) -> None:
    lease = pop(queue, "w:1")
    try:
        raise OSError("password=s3cr3t <b>gone</b>")  # noqa: TRY301
    except OSError as error:
        queue.fail(lease, error, retry=delay is not None, delay=delay or 1)


def lead(client: Client) -> str:
    """The first part of the page, with its form."""
    text = read(client, page("t"))
    return text.split('class="fq-why"', 1)[1].split("</form>", 1)[0]


def buttons(text: str) -> list[str]:
    return re.findall(r'name="action" value="(\w+)"', text)


def fail_once(queue: FairQueue) -> None:
    fail(queue, delay=3600)


def test_the_page_of_a_queued_task_has_an_estimate_of_its_start(client: Client, queue: FairQueue) -> None:
    push(queue)
    log_in(client, "view_task")
    assert "It probably starts within" not in lead(client), "no worker is running"
    queue.heartbeat("w", {})
    assert "It probably starts within 5 s." in lead(client)


def pause_organization(queue: FairQueue) -> None:
    queue.user("ann").set_organization("acme")
    queue.organization("acme").pause()


@pytest.mark.parametrize(
    ("options", "arrange", "action", "permission"),
    [
        ({}, lambda queue: queue.pause(), "resume_queue", "change_queue"),
        ({}, lambda queue: queue.user("ann").pause(), "resume_user", "change_user"),
        ({}, pause_organization, "resume_organization", "change_user"),
        ({"execute_after": 4e9}, lambda queue: None, "run_now", "change_task"),
        ({}, fail_once, "run_now", "change_task"),
    ],
)
def test_the_page_of_a_waiting_task_offers_an_action_that_lets_it_start(
    client: Client,
    queue: FairQueue,
    options: dict[str, float],
    arrange: Callable[[FairQueue], None],
    action: str,
    permission: str,
) -> None:
    push(queue, **options)
    arrange(queue)
    user = log_in(client, "view_task")
    assert buttons(lead(client)) == []
    assert client.post(page("t"), {"action": action}).status_code == 403
    assert queue.pop("w:2") is None
    allow(user, permission)
    assert action in buttons(lead(client))
    assert "Why is it waiting?" in lead(client)
    assert client.post(page("t"), {"action": action}).status_code == 302
    assert queue.pop("w:2") is not None


@pytest.mark.parametrize(
    ("options", "arrange", "words", "actions"),
    [
        ({"expires_at": 2e9}, lambda queue: queue.sweep(now=2.1e9), "It expired before it was started", ["retry"]),
        ({"timeout": 90}, pop, r"A worker has had it for [^;]+; its time limit is 1 min 30 s\.", ["cancel"]),
        (
            {},
            lambda queue: queue.cancel("t", reason="<i>not needed</i>"),
            r"(?s)Why was it canceled\?.*&lt;i&gt;not needed&lt;/i&gt;",
            ["edit"],
        ),
    ],
)
def test_the_page_of_a_task_begins_with_its_state_and_the_next_action(
    admin_client: Client,
    queue: FairQueue,
    options: dict[str, float],
    arrange: Callable[[FairQueue], object],
    words: str,
    actions: list[str],
) -> None:
    push(queue, **options)
    arrange(queue)
    text = lead(admin_client)
    assert re.search(words, text)
    assert "Why is it waiting?" not in text
    assert buttons(text) == actions


@pytest.mark.parametrize(
    ("line", "unresponsive_since", "sentence"),
    [
        ("shop.py:3 <b>f</b>", "", r"It is at shop\.py:3 &lt;b&gt;f&lt;/b&gt; \(sampled 1 min \d+ s ago\)\."),
        ("shop.py:3 f", "5.0", r"Its process does not respond\. 1 min \d+ s ago it was at shop\.py:3 f\."),
        (
            "",
            "5.0",
            r"Its process does not respond\. The last sample, of 1 min \d+ s ago, is from before this task began\.",
        ),
        ("", "", ""),
    ],
)
def test_the_page_of_a_running_task_shows_its_current_line(
    admin_client: Client, queue: FairQueue, line: str, unresponsive_since: str, sentence: str
) -> None:
    push(queue)
    pop(queue, "w:2")
    at = time.time() - 70
    activity = encode_activity(at, [([], ReportedTask("t", "", "ann", at, line=line))]).decode()
    fields = {ACTIVITY_FIELD: activity, SENT_FIELD: str(time.time()), UNRESPONSIVE_FIELD: unresponsive_since}
    for worker in ("w:1", "w:2"):
        queue.heartbeat(worker, fields if worker == "w:2" else {})
    text = lead(admin_client)
    assert re.search(sentence, text)
    assert text.count("<li>") == (3 if sentence else 2)


def test_the_page_of_a_failed_task_shows_its_last_frame(admin_client: Client, queue: FairQueue) -> None:
    push(queue)
    fail(queue)
    text = lead(admin_client)
    assert "Why did it fail?" in text
    frame = re.search(r'<details id="fq-last-frame" open>.*?<pre[^>]*>(.*?)</pre>', text, re.DOTALL)
    assert frame is not None
    assert re.match(r"  File &quot;[^\n]*test_task_page.py&quot;, line \d+, in fail\n    raise OSError", frame[1])
    assert frame[1].rstrip().endswith("&lt;b&gt;gone&lt;/b&gt;")
    assert "s3cr3t" not in text
    assert buttons(text) == ["retry"]


def test_each_attempt_has_a_bar(admin_client: Client, queue: FairQueue) -> None:
    push(queue, max_retries=3)
    fail(queue, delay=3600)
    queue.run_now("t")
    fail(queue, delay=3600)
    first, second = queue.history("t")
    for attempt in (first, second):
        assert attempt.ready_at is not None
        assert attempt.started_at is not None
        assert attempt.ready_at <= attempt.started_at <= attempt.at
    assert second.started_at is not None
    assert second.started_at >= first.at
    text = read(admin_client, page("t"))
    bars = re.findall(r'<tr><th scope="row">(.*?)</th><td class="fq-bar-cell"><svg', text)
    assert bars == ["failed", "failed", "scheduled"]
    assert "style=" not in text.split('class="fq-attempt-bars"')[1].split("</table>")[0]


def test_bars_of_attempts_are_as_long_as_their_parts() -> None:
    times = {"created_at": 100.0, "ready_at": 170.0, "started_at": 180.0, "ended_at": 185.0}
    task = Task.create("ann", 3, None).model_copy(update={"state": TaskState.FINISHED, **times})
    attempts = [
        Attempt(131.0, "failed", "w", ready_at=110.0, started_at=130.0),
        Attempt(131.0, "poisoned", "w", ready_at=110.0, started_at=130.0),
        Attempt(140.0, "requeued", ""),
    ]
    bars = attempt_bars(task, attempts, 999.0)
    assert [(bar.kind, bar.scheduled, bar.waited, bar.ran) for bar in bars] == [
        ("failed", 10.0, 20.0, 1.0),
        ("finished", 30.0, 10.0, 5.0),
    ]
    assert bars[1].parts == [("scheduled", 0.0, 30.0), ("waited", 30.0, 10.0), ("ran", 40.0, 5.0)]
    old = [Attempt(131.0, "failed", "w")]  # an earlier version has no times of it
    assert [bar.kind for bar in attempt_bars(task, old, 999.0)] == ["finished"]
    assert all(length >= 0 for bar in attempt_bars(task, attempts, 0.0) for length in (bar.scheduled, bar.waited))


@pytest.mark.parametrize(
    ("traceback", "frame"), [("", ""), ("no frame", ""), ('T\n  File "a"\n  File "b"\nE', '  File "b"\nE')]
)
def test_the_last_frame_of_a_traceback_is_found(traceback: str, frame: str) -> None:
    assert last_frame(traceback) == frame


def record_lines(queue: FairQueue, *texts: str) -> None:
    push(queue)
    lease = pop(queue, "w:1")
    queue.logs.record(lease, [LogLine(1_800_000_000.25, "WARNING", "shop.mail", text) for text in texts], 7)


def test_log_lines_are_shown_without_secrets_and_as_text(admin_client: Client, queue: FairQueue) -> None:
    record_lines(queue, "password=s3cr3t for ann", "<script>alert(1)</script> \x1b[31m \u202e")
    text = read(admin_client, page("t"))
    assert "Attempt 1: 2 lines" in text
    assert "7 lines before these were not kept." in text
    assert "250000" in text, "lines of one second have an order"
    assert "password=••••••" in text
    assert "s3cr3t" not in text
    assert "<script>alert" not in text
    assert "&lt;script&gt;" in text


def test_log_lines_need_a_permission(client: Client, queue: FairQueue) -> None:
    record_lines(queue, "only for some")
    user = log_in(client, "view_task")
    assert "only for some" not in read(client, page("t"))
    allow(user, "view_tasklog")
    assert "only for some" in read(client, page("t"))


def test_a_task_without_log_lines_has_no_heading_for_them(admin_client: Client, queue: FairQueue) -> None:
    push(queue)
    assert "fq-log" not in read(admin_client, page("t"))
