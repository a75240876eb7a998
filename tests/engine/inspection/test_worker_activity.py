"""Reports of workers about their slots have a bounded size for any names; any content of a record is harmless."""

from __future__ import annotations

import json

import pytest

from django_fairque.engine.inspection.pages import WorkerRecord
from django_fairque.engine.inspection.worker_activity import (
    ACTIVITY_FIELD,
    DEATHS_FIELD,
    MAX_ACTIVITY_BYTES,
    MAX_REPORTED_SLOTS,
    SENT_FIELD,
    UNRESPONSIVE_FIELD,
    EndReason,
    ProcessDeath,
    ReportedTask,
    decode_activity,
    encode_activity,
    encode_deaths,
    list_recent_deaths,
)
from django_fairque.engine.queue.queue import FairQueue


def record(activity: bytes = b"", deaths: str = "") -> WorkerRecord:
    return WorkerRecord("w", 1_000.0, 0, {ACTIVITY_FIELD: activity.decode(), DEATHS_FIELD: deaths})


def test_an_activity_report_is_decoded_as_it_was_encoded() -> None:
    task = ReportedTask("id-1", "shop.send", "ann", 95.0, line="shop/tasks.py:30 send")
    report = decode_activity(record(encode_activity(100.0, [(["", "ann", "ann", "bob"], task), ([""], None)])))
    assert report is not None
    assert report.at == 100.0
    first, second = report.slots
    assert (first.users, first.task, first.busy_seconds) == (("", "ann", "ann", "bob"), task, 3)
    assert (second.users, second.task) == (("",), None)
    assert report.utilization == 3 / 5


def test_lines_of_the_longest_running_tasks_are_reported_for_more_slots_than_samples() -> None:
    tasks = [ReportedTask(f"{n:060}", "shop.send", "ann", 95.0 - n, line="shop/tasks.py:30 send") for n in range(300)]
    other = ReportedTask("other", "shop.wait", "ann", -1_000.0, line="x" * 500)
    report = decode_activity(record(encode_activity(100.0, [*(([], task) for task in tasks), ([], other)])))
    assert report is not None
    assert report.lines[f"{299:060}"] == "shop/tasks.py:30 send"
    assert report.lines["other"] == "x" * 120
    assert f"{240:060}" in report.lines
    # The lines of the others do not fit, among them those of the slots that have samples.
    assert [slot.task and slot.task.line for slot in report.slots] == [""] * MAX_REPORTED_SLOTS


@pytest.mark.parametrize(("running", "others"), [("3", ""), ("5", " and 2 at an unknown line"), ("?", "")])
def test_health_names_the_lines_of_a_process_that_does_not_respond(queue: FairQueue, running: str, others: str) -> None:
    tasks = [ReportedTask(f"id-{n}", "send", "ann", float(n), line=f"tasks.py:{n // 2} send") for n in (1, 2, 3)]
    activity = encode_activity(100.0, [([], task) for task in tasks]).decode()
    queue.heartbeat("w1", {ACTIVITY_FIELD: activity, UNRESPONSIVE_FIELD: "5.0", "running": running})
    (reason,) = [reason for reason in queue.health().reasons if "process w1" in reason]
    lines = "tasks.py:0 send, tasks.py:1 send"
    assert reason == f"process w1 does not respond, its tasks were at {lines}{others}; the worker's log has the tasks"


def test_the_most_frequent_users_are_named() -> None:
    samples = [f"user{n}" for n in range(30)] + 30 * ["noisy"]
    report = decode_activity(record(encode_activity(1.0, [(samples, None)])))
    assert report is not None
    (slot,) = report.slots
    assert slot.users[-1] == "noisy"
    assert len({user for user in slot.users if user is not None}) == 12
    assert None in slot.users
    assert slot.busy_seconds == 60


@pytest.mark.parametrize("char", ["x", "\0", '"', "\U0001f600", "\\", "\udcff"])
def test_hostile_names_make_no_report_too_long(char: str) -> None:
    users = [f"{n}{char * 70}" for n in range(40)]
    task = ReportedTask(char * 200, char * 500, char * 500, 1.0, 1000, char * 500)
    text = encode_activity(1.0, [((users * 2)[:60], task)] * 100)
    assert len(text) <= MAX_ACTIVITY_BYTES
    report = decode_activity(record(text))
    assert report is not None
    assert len(report.slots) == MAX_REPORTED_SLOTS
    assert report.utilization == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "[]",
        "3",
        '{"at": 1}',
        '{"at": NaN, "users": [], "slots": []}',
        '{"at": 1, "users": [3], "slots": []}',
        '{"at": 1, "users": [], "slots": [["a", ["id"]]]}',
        '{"at": 1, "users": [], "slots": [["a", ["id", "n", "u", Infinity, 1]]]}',
        '{"at": 1e999, "users": [], "slots": []}',
        '{"at": 1, "users": [], "slots": [], "lines": 3}',
        '{"at": 1, "users": [], "slots": [], "lines": {"line": [3]}}',
        '{"at": 1, "users": ["\\ud800"], "slots": []}',
        "[" * 100_000,
    ],
)
def test_a_damaged_activity_record_is_ignored(text: str) -> None:
    assert decode_activity(record(text.encode(), text)) is None
    assert list_recent_deaths([record(b"", text)], 1.0) == []


def test_deaths_are_listed_once_for_an_hour() -> None:
    old, first, last = (ProcessDeath(at, f"w.{at}", EndReason.SIGNAL, 9, ("id",)) for at in (1.0, 5_000.0, 6_000.0))
    text = encode_deaths([old, first, last])
    assert list_recent_deaths([record(b"", text), record(b"", text)], 6_001.0) == [last, first]
    assert len(json.loads(encode_deaths([old] * 50))) == 5


def test_times_are_those_of_the_server() -> None:
    """The worker's clock is an hour ahead."""
    text = encode_activity(4_598.0, [(["ann"], ReportedTask("id", "n", "ann", 4_590.0))]).decode()
    report = decode_activity(WorkerRecord("w", 1_000.0, 0, {ACTIVITY_FIELD: text, SENT_FIELD: "4600.0"}))
    assert report is not None
    assert report.at == 998.0
    assert report.slots[0].task is not None
    assert report.slots[0].task.started_at == 990.0
    early = decode_activity(WorkerRecord("w", 1_000.0, 0, {ACTIVITY_FIELD: text}))
    assert early is not None
    assert early.at == 1_000.0, "no report is from the future"
