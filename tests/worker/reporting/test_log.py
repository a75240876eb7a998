"""Log lines: complete while a person can read them, sums beyond, and nothing that forges a line."""

from __future__ import annotations

import logging

import pytest

from django_fairque.engine.model.outcome import Outcome
from django_fairque.worker.common.log import LOG_LINES_PER_SECOND, OutcomeReporter, printable
from tests.worker.fetching.planners import lease


@pytest.fixture(autouse=True)
def listen(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "django_fairque.worker")


def test_each_finished_task_has_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    done, failed, dead = (lease("mail.send", user) for user in ("ann", "bob", "cid"))
    error = ValueError("first line\nsecond line")
    outcomes = [
        Outcome.finish(done, {"never": "shown"}, took=0.0123),
        Outcome.fail(failed, error, delay=2.0, took=61.04),
        Outcome.fail(dead, "no", delay=None, took=300.0),
    ]
    OutcomeReporter().report(outcomes, ["finished", "retried", "dead"])
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("DEBUG", f"task {done.task_id} mail.send of user ann finished after 12.3 ms"),
        (
            "WARNING",
            f"task {failed.task_id} mail.send of user bob failed, again in 2 s after 61.0 s: ValueError: first line",
        ),
        ("ERROR", f"task {dead.task_id} mail.send of user cid failed for good after 5.0 min: no"),
    ]
    assert [record.__dict__["action"] for record in caplog.records] == ["finished", "retried", "dead"]


def test_the_tasks_of_a_process_have_a_summary(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "django_fairque.worker")
    reporter = OutcomeReporter("w.0.1")
    reporter.report([Outcome.finish(lease()) for _ in range(3)], ["finished"] * 3)
    reporter.report([Outcome.fail(lease(), "no", delay=2.0), Outcome.release(lease())], ["retried", "released"])
    reporter.summarize()
    assert [record.levelname for record in caplog.records] == ["WARNING"]  # a minute has not passed
    reporter.summarize(at_end=True)
    assert caplog.records[-1].getMessage() == "process w.0.1, last 0 s: 3 finished, 1 to be tried again"
    reporter.summarize(at_end=True)
    assert len(caplog.records) == 2


def test_log_lines_of_many_tasks_are_summed_up(caplog: pytest.LogCaptureFixture) -> None:
    reporter = OutcomeReporter()
    many = [Outcome.finish(lease(), took=0.001) for _ in range(LOG_LINES_PER_SECOND + 450)]
    reporter.report(many, ["finished"] * len(many))
    reporter.flush()
    recorded = sum(record.getMessage().startswith("task ") for record in caplog.records)
    summed = [int(r.getMessage().split()[2]) for r in caplog.records if r.getMessage().startswith("... and ")]
    assert recorded <= LOG_LINES_PER_SECOND  # half of them in each second, and the second may have changed meanwhile
    assert recorded + sum(summed) == len(many)


@pytest.mark.parametrize("status", ["finished", "dead"])
def test_many_log_lines_of_one_user_do_not_hide_those_of_others(caplog: pytest.LogCaptureFixture, status: str) -> None:
    def of(user: str) -> Outcome:
        return Outcome.finish(lease("n", user)) if status == "finished" else Outcome.fail(lease("n", user), "no")

    reporter = OutcomeReporter()
    noisy = [of("mallory") for _ in range(5000)]
    others = [of(f"user-{number}") for number in range(40)]
    reporter.report(noisy, [status] * len(noisy))
    reporter.report(others, [status] * len(others))
    reporter.flush()
    lines = [record.getMessage() for record in caplog.records]
    for number in range(40):
        assert sum(f"of user user-{number} " in line for line in lines) == 1
    assert any(line.startswith("... and ") and line.endswith(" of them of user mallory") for line in lines)


def test_returned_tasks_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    OutcomeReporter().report([Outcome.release(lease())], ["released"])
    assert caplog.records == []


@pytest.mark.parametrize("text", ["a\nb", "a\x1b[31mb", "a b", "x" * 300, "\u202eevil"])
def test_a_task_id_can_not_forge_a_log_line(text: str) -> None:
    assert printable(text).isprintable()
    assert " " not in printable(text) or text == "a b"
    assert len(printable(text)) <= 80
