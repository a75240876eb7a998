"""The program calls a figure wrong that differs from its own count, and its exit code says so."""

from __future__ import annotations

import pytest

from .__main__ import Answer, report


@pytest.mark.parametrize(
    ("shown", "own", "tolerance"),
    [
        (7, 8, 0),
        (7, 12, 4),
        ([3, 40], [3, 45], 4),
        ((1, 2), (1, 2, 3), 9),
        ([], [10], 9),
        (None, "growing", 9),
        ("done", "growing", 9),
        ([["06:00"], []], [["06:00"], ["06:00"]], 9),
    ],
)
def test_a_figure_that_differs_from_the_own_count_is_wrong(
    shown: object, own: object, tolerance: float, capsys: pytest.CaptureFixture[str]
) -> None:
    right, wrong = Answer("right", own, own, tolerance), Answer("wrong", shown, own, tolerance)
    assert report([right]) == 0
    assert report([right, wrong]) == 1
    *_, last_row, sums = capsys.readouterr().out.splitlines()
    assert last_row.startswith("wrong ")
    assert last_row.endswith("WRONG")
    assert sums == "2 figures compared, 1 wrong"


def test_numbers_may_differ_by_the_tolerance() -> None:
    assert Answer("a number", 8, 12, 4).is_right
    assert Answer("two numbers", (8, 5), [12, 4], 4).is_right
