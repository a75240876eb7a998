"""Tests of the report at the end of a series of campaigns."""

from __future__ import annotations

from typing import Any

import pytest

from . import report


def found(seed: int, kills: int, p99: float, *violations: str) -> dict[str, Any]:
    recovery = {"child": {"p99": p99}, **({"server": {"p99": 0.5}} if seed == 1 else {})}
    return {
        "seed": seed,
        "server": "valkey 9",
        "faults": {"child": {"planned": 2000, "done": kills}},
        "recovery": recovery,
        "counts": {"finished": 600_000},
        "stale_outcomes_refused": 3,
        "violations": list(violations),
    }


def test_runs_are_added_up_and_the_slowest_recovery_counts(capsys: pytest.CaptureFixture[str]) -> None:
    series = [found(1, 2000, 0.4), found(2, 1999, 0.7, "lost: a")]
    together = report.together(series)
    assert together["faults"] == {"child": 3999}
    assert together["judged"] == {"finished": 1_200_000, "stale outcomes refused": 6, "violations": 1}
    assert together["longest p99 of a run, s"] == {"child": 0.7, "server": 0.5}
    report.print_together(series)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "2 runs together: seeds 1 to 2, valkey 9" in lines
    assert {"child 3,999", "finished 1,200,000", "violations 1", "child 0.700"} <= set(lines)
