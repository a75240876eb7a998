"""``fairque_limit``, and limits by key in the other commands."""

from __future__ import annotations

import json
import re
from datetime import datetime, timezone

import pytest
from django.core.management import CommandError

from django_fairque.engine.model.limits import TaskLimit
from tests.fixture_types import FairQueue

from .conftest import Push, Run

K, MINE = TaskLimit("k", 1, 10_000, 20), TaskLimit("mine", 2, is_of_user=True, at_limit="newest")


@pytest.fixture
def waiting(queue: FairQueue, push: Push) -> str:
    """The id of a task that waits at a limit, of which another one runs."""
    push(limits=[K])
    assert queue.pop("w")
    return push(limits=[K, MINE])


@pytest.mark.usefixtures("waiting")
class TestLimits:
    def test_limits_with_waiting_tasks_are_listed(self, run: Run) -> None:
        lines = run("fairque_limit", "list").splitlines()
        assert lines[0].split() == ["limit", "user", "waiting", "running", "values"]
        assert lines[1].split() == ["k", "-", "1", "1", "1", "at", "once,", "100/s", "(burst", "20)"]
        (row,) = [json.loads(line) for line in run("fairque_limit", "list", "--json").splitlines()]
        assert (row["key"], row["user"], row["waiting"], row["is_closed"]) == ("k", None, 1, False)

    def test_a_limit_is_closed_and_opened(self, queue: FairQueue, run: Run) -> None:
        assert run("fairque_limit", "close", "k").splitlines()[1].endswith("closed")
        assert queue.limit("k").stats().is_closed
        assert "closed" not in run("fairque_limit", "open", "k")
        assert not queue.limit("k").stats().is_closed

    @pytest.mark.parametrize("end", [("--for", "2h"), ("--until", "2090-12-31T18:00Z")])
    def test_a_limit_is_closed_until_a_moment(self, queue: FairQueue, run: Run, end: tuple[str, str]) -> None:
        assert re.search(r" closed until 20\d\d-\d\d-\d\d ", run("fairque_limit", "close", "k", *end))
        until = datetime.fromtimestamp(queue.limit("k").stats().closed_until or 0, timezone.utc)
        assert end[0] == "--for" or until == datetime(2090, 12, 31, 18, tzinfo=timezone.utc)

    def test_the_limit_of_a_user_is_named_with_its_user(self, queue: FairQueue, run: Run) -> None:
        run("fairque_limit", "close", "mine", "--user", "acme")
        assert queue.limit("mine", "acme").stats().is_closed
        assert not queue.limit("mine").stats().is_closed
        assert run("fairque_limit", "show", "mine", "--user", "acme").splitlines()[1].split()[:2] == ["mine", "acme"]

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["close", "k", "--until", "tomorrow"], "--until takes a date and time such as 2030-12-31T18:00"),
            (["close", "k", "--for", "soon"], "expected an age such as 90s"),
            (["show", ""], "the key of a limit must be a non-empty string"),
            (["close"], "the following arguments are required: key"),
        ],
    )
    def test_a_mistake_changes_nothing(self, queue: FairQueue, run: Run, words: list[str], message: str) -> None:
        with pytest.raises(CommandError, match=message):
            run("fairque_limit", *words)
        assert not queue.limit("k").stats().is_closed

    def test_a_task_is_shown_with_its_limits_and_where_it_waits(self, run: Run, waiting: str) -> None:
        shown = run("fairque_task", "show", waiting)
        assert "\nlimit     k: 1 at once, 100/s (burst 20)\n" in shown
        assert "\nlimit     mine (each user): 2 at once, newest\n" in shown
        assert "\nwhy       1 of 1 task of limit k runs.\n" in shown

    def test_the_figures_have_a_line_while_tasks_wait_at_limits(self, queue: FairQueue, run: Run, push: Push) -> None:
        assert "\nlimits   1 queued task waits at a limit by key\n" in run("fairque_stats")
        push(limits=[K])
        assert "\nlimits   2 queued tasks wait at a limit by key\n" in run("fairque_stats")
        queue.purge()
        assert "limits " not in run("fairque_stats")
