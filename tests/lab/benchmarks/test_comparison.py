"""The benchmark command writes its figures, and compares two versions."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .comparison import ratios
from .processes import ROOT
from .table import Table


def benchmarks(*arguments: str) -> str:
    command = [sys.executable, "-m", "tests.lab.benchmarks", *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


@pytest.mark.slow  # starts a process for each import that is measured
def test_figures_are_written_with_machine_versions_and_commit(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    benchmarks("--quick", "imports", "--write", str(file))
    written = json.loads(file.read_text())
    assert set(written) >= {"commit", "machine", "versions", "load", "at"}
    assert set(written["versions"]) >= {"python", "django", "redis", "server"}
    figures = written["parts"]["imports"]
    assert figures
    assert all(min(figure["values"]) <= figure["median"] <= max(figure["values"]) for figure in figures)


@pytest.mark.slow
def test_a_single_task_does_not_wait_behind_a_backlog(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    benchmarks("--quick", "noisy", "--write", str(file))
    fair, _, first_come, _ = json.loads(file.read_text())["parts"]["noisy"]
    assert fair["median"] < first_come["median"] / 4


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="compares with a commit, and this is no checkout")
@pytest.mark.slow
def test_the_benchmark_compares_the_working_tree_with_another_version() -> None:
    printed = benchmarks("--quick", "imports", "--against", "HEAD", "--pairs", "1", "--own-benchmarks").splitlines()
    assert printed[0].split() == ["figure", "here", "HEAD", "ratio", "spread"]
    assert any(line.startswith("imports: ") for line in printed[1:])


def test_a_ratio_is_calculated_for_each_round() -> None:
    rounds = [
        ({("worker", "tasks"): (110.0, "/s")}, {("worker", "tasks"): (100.0, "/s"), ("worker", "gone"): (1.0, "")}),
        ({("worker", "tasks"): (90.0, "/s")}, {("worker", "tasks"): (100.0, "/s"), ("worker", "gone"): (1.0, "")}),
    ]
    assert ratios(rounds) == {("worker", "tasks"): [1.1, 0.9]}


def test_an_indented_row_of_a_table_is_named_with_its_parent_row() -> None:
    table = Table("engine")
    table.add("a push", [1.0, 3.0, 2.0], "µs")
    table.add("  server", 5.0, "µs")
    assert [(figure.name, figure.median) for figure in table.figures] == [("a push", 2.0), ("a push: server", 5.0)]
