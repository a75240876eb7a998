"""The table: who waited how long, and would have."""

from __future__ import annotations

import pytest
from library.report import duration, summary, table, times, waits_by_user

from django_fairque.monitoring.first_come import ServedTask

GREEDY = [ServedTask("greedy", 0.0, start, start + 1.0) for start in (0.0, 2.0, 4.0, 5.0)]
SMALL = [ServedTask("small", 0.5, 1.0, 2.0), ServedTask("tiny", 0.6, 3.0, 4.0)]
"""One slot that served them fairly; first come, first served they would have begun at 4 and at 5."""


def test_waits_are_listed_by_user_with_the_largest_first() -> None:
    greedy, small, tiny = waits_by_user([*SMALL, *GREEDY], slots=1)
    assert (greedy.user, small.user, tiny.user) == ("greedy", "small", "tiny")
    assert (greedy.fair, greedy.fcfs) == ((0.0, 2.0, 4.0, 5.0), (0.0, 1.0, 2.0, 3.0))
    assert (small.fair, small.fcfs) == ((0.5,), (3.5,))
    assert small.gain == pytest.approx(7)
    assert greedy.gain == pytest.approx(0.5)


def test_the_comparison_starts_with_the_workers() -> None:
    (late,) = waits_by_user([ServedTask("acme", 0.0, 3.0, 4.0), ServedTask("acme", 0.0, 4.0, 5.0)], slots=1)
    assert late.fair == late.fcfs == (3.0, 4.0)


def test_the_table_of_waits_compares_with_first_come_first_served() -> None:
    assert list(table(waits_by_user([*SMALL, *GREEDY], slots=1))) == [
        "user    tasks  median wait  longest  median FCFS  longest  FCFS / fair",
        "------  -----  -----------  -------  -----------  -------  -----------",
        "greedy      4        3.0 s    5.0 s        1.5 s    3.0 s        0.5 ×",
        "small       1       500 ms   500 ms        3.5 s    3.5 s        7.0 ×",
        "tiny        1        2.4 s    2.4 s        4.4 s    4.4 s        1.8 ×",
    ]


def test_the_summary_is_about_the_half_with_the_fewest_tasks() -> None:
    assert summary(waits_by_user([*SMALL, *GREEDY], slots=1)) == (
        "The 2 users with at most 1 task each waited 1.4 s (median) instead of 4.0 s first come, first served,\n"
        "which is 2.7 times as long."
    )


def test_the_summary_of_a_single_user_names_its_waits() -> None:
    assert summary(waits_by_user(GREEDY, slots=1)).startswith("User greedy waited 3.0 s (median) instead of 1.5 s")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "< 1 ms"), (0.0009, "< 1 ms"), (0.0421, "42 ms"), (0.9996, "1.0 s"), (12.34, "12.3 s"), (100.0, "100.0 s")],
)
def test_durations_are_shown_with_fitting_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(("factor", "text"), [(0.5, "0.5"), (9.96, "10"), (41.6, "42"), (12_345.6, "12,346")])
def test_factors_are_shown_with_few_digits(factor: float, text: str) -> None:
    assert times(factor) == text
