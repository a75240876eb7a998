"""The sentence of a user's report in all its forms, and the report as a file."""

from __future__ import annotations

import csv
import json
from io import StringIO

import pytest
from django.utils import translation

from django_fairque.engine.dead_letters.letters import DLQGroup
from django_fairque.engine.model.records import FailureType
from django_fairque.engine.statistics.queue_stats import Percentiles
from django_fairque.engine.users.history import UserHistory, UserPeriod
from django_fairque.engine.users.report import UserReport
from django_fairque.monitoring.reports.user_report import report_csv, report_json, report_sentence, time_of_day

BEGIN = 2_000_080_800
SINCE = time_of_day(BEGIN)
FIRST = time_of_day(BEGIN + 60)


def make(
    finished: int = 0,
    dead: int = 0,
    errors: tuple[int, ...] = (),
    *,
    failed: int | None = None,
    waited: bool = True,
    user: str = "ann",
    text: str = "no such address",
    ready: int = 0,
    held_by: str | None = None,
) -> UserReport:
    """``errors`` are the numbers of known dead letters by error."""
    wait = Percentiles(count=finished + dead, p50=1.4, p95=9.0, p99=9.0) if waited else Percentiles()
    recent = UserPeriod(BEGIN, 7200, finished, dead if failed is None else failed, dead, finished, dead, wait)
    groups = [
        DLQGroup(f"f{index}", "app.send", FailureType.FAILED, text, count, BEGIN + 60, BEGIN + 90, "t~1", text)
        for index, count in enumerate(errors)
    ]
    history = UserHistory([recent], [recent])
    return UserReport(user, "default", recent, history, tuple(groups), is_whole=True, ready=ready, held_by=held_by)


WAITED = "waited about 1.4 s (95 % of starts: within about 9 s)"


@pytest.mark.parametrize(
    ("report", "sentence"),
    [
        (make(), f"None of your tasks has ended since {SINCE}."),
        (
            make(ready=3_046, held_by="user_paused"),
            f"None of your tasks has ended since {SINCE}; 3,046 tasks wait because your tasks are paused.",
        ),
        (
            make(ready=1, held_by="organization_paused"),
            f"None of your tasks has ended since {SINCE}; 1 task waits because of a pause.",
        ),
        (
            make(2, ready=5, held_by="capped"),
            f"Your 2 tasks that ended since {SINCE} {WAITED}; none failed; 5 tasks wait now.",
        ),
        (make(failed=2), f"None of your tasks has ended since {SINCE}; 2 attempts failed in all."),
        (make(1), f"Your task that ended since {SINCE} waited about 1.4 s; it did not fail."),
        (make(2), f"Your 2 tasks that ended since {SINCE} {WAITED}; none failed."),
        (
            make(1_236, 12, (12,)),
            f"Your 1,248 tasks that ended since {SINCE} {WAITED}; 12 failed, all with the same error, since {FIRST}.",
        ),
        (
            make(5, 7, (4, 3)),
            f"Your 12 tasks that ended since {SINCE} {WAITED}; 7 failed, with 2 different errors, since {FIRST}.",
        ),
        (make(1, 1, (1,)), f"Your 2 tasks that ended since {SINCE} {WAITED}; 1 failed, at {FIRST}."),
        (make(0, 1, (1,)), f"Your task that ended since {SINCE} waited about 1.4 s; it failed, at {FIRST}."),
        (
            make(0, 1, waited=False),
            f"Your task that ended since {SINCE} never started; it failed, its error is not known.",
        ),
        (
            make(0, 3, waited=False),
            f"Your 3 tasks that ended since {SINCE} never started; 3 failed, their errors are not known.",
        ),
        (
            make(1, 3, (1,)),
            f"Your 4 tasks that ended since {SINCE} {WAITED}; 3 failed, the error of 1 is known, at {FIRST}.",
        ),
        (
            make(1, 3, (2,)),
            (
                f"Your 4 tasks that ended since {SINCE} {WAITED}; 3 failed, the errors of 2 are known, "
                f"all the same, the earliest at {FIRST}."
            ),
        ),
        (
            make(1, 3, (1, 1), failed=9),
            (
                f"Your 4 tasks that ended since {SINCE} {WAITED}; 3 failed, the errors of 2 are known, "
                f"2 different ones, the earliest at {FIRST}; 9 attempts failed in all."
            ),
        ),
    ],
)
def test_the_sentence_states_waits_and_failures(report: UserReport, sentence: str) -> None:
    assert report_sentence(report) == sentence


def test_the_sentence_is_translated() -> None:
    with translation.override("ja"):
        for report in (make(), make(1), make(5, 7, (4, 3)), make(1, 3, (2,)), make(0, 3, waited=False)):
            assert not set("tasks") <= set(report_sentence(report)), report_sentence(report)


def rows_of(report: UserReport, **options: bool) -> list[dict[str, str]]:
    return list(csv.DictReader(StringIO(report_csv(report, **options))))


def test_no_cell_begins_a_formula_in_a_spreadsheet() -> None:
    for start in ("=", "+", "-", "@", "\t", "\r", "\N{FULLWIDTH EQUALS SIGN}"):
        text = f'{start}HYPERLINK("//evil.example", "a,b")\n\u2028;"'
        rows = rows_of(make(1, 1, (1,), user=text, text=text))
        assert [row["kind"] for row in rows] == ["hour", "day", "error"]
        assert {row["user"][0] for row in rows} == {"'"}
        cells = [cell for row in rows for cell in row.values()]
        assert not [cell for cell in cells if cell.startswith(tuple("=+-@\t\r\N{FULLWIDTH EQUALS SIGN}"))]


def test_files_have_the_figures_and_the_errors_without_secrets() -> None:
    report = make(236, 12, (12,), text="password=hunter2 is wrong\nTraceback")
    hour, day, error = rows_of(report)
    assert (hour["begin"], hour["finished"], hour["dead_letters"]) == ("2033-05-19T02:00:00Z", "236", "12")
    assert (day["sla_kept_percent"], day["wait_p50_seconds"]) == ("95.16", "1.4")
    assert (error["dead_letters"], error["task"], error["last"]) == ("12", "app.send", "2033-05-19T02:01:30Z")
    assert "hunter2" not in error["error"]
    content = json.loads(report_json(report))
    assert content["sentence"] == report_sentence(report)
    assert (content["recent"]["dead_letters"], content["errors"][0]["dead_letters"]) == (12, 12)
    assert "hunter2" not in str(content)


def test_files_have_no_errors_for_readers_who_may_not_see_them() -> None:
    report = make(1, 1, (1,))
    assert "address" not in report_csv(report, has_errors=False) + report_json(report, has_errors=False)
