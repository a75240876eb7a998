"""A task that uses no middleware, argument types, signatures or limits costs what it would cost without their code."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.servers import Server

from .features import LEFT_OUT, STEPS, Version, copy_without
from .processes import ROOT

pytestmark = pytest.mark.thorough

MOST = 1.02
"""Instructions of a task that uses none of the features, over those of a version without their code."""
on_python_3_11 = pytest.mark.skipif(
    sys.version_info[:2] != (3, 11),
    reason="each version of Python has other instructions, and from 3.12 on not all are counted: compared on 3.11",
)


def counts(directory: Path) -> Any:
    with Server() as server, Version(directory, server) as version:
        return version.request("count")


@pytest.fixture(scope="module")
def here() -> Any:
    return counts(ROOT)


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return counts(copy_without(LEFT_OUT, tmp_path_factory.mktemp("without").resolve()))


def test_unused_features_take_no_server_commands(here: Any, without: Any) -> None:
    assert here["server commands"] == without["server commands"]
    assert here["server commands"]["enqueue"] > 0


@on_python_3_11
def test_unused_features_take_few_instructions(here: Any, without: Any) -> None:
    instructions = [sum(cost["instructions"].values()) for cost in (here, without)]
    assert 1 < instructions[0] / instructions[1] <= MOST, (here["instructions"], without["instructions"])


def test_a_task_runs_the_code_that_is_compared() -> None:
    with Server() as server, Version(ROOT, server) as version:
        passed = {(file, line) for file, line in version.request("lines")}
    for feature, replacements in LEFT_OUT.items():
        for name, text, _ in replacements:
            file = ROOT / "django_fairque" / name
            line = file.read_text().partition(text)[0].count("\n") + 1
            assert file.suffix == ".lua" or (str(file), line) in passed, f"{feature}: {name}, line {line}"


@pytest.mark.slow
@on_python_3_11
def test_the_benchmark_counts_added_work(here: Any, tmp_path: Path) -> None:
    copy = copy_without((), tmp_path.resolve())
    file = copy / "django_fairque" / "tasks" / "execution.py"
    call = "lease.check()\n"
    source = file.read_text()
    assert source.count(call) == 1
    file.write_text(source.replace(call, f"{call}        [None for _ in range(20)]\n"))
    before, slower = here["instructions"], counts(copy)["instructions"]
    assert {step for step in STEPS if slower[step] != before[step]} == {"run"}
    assert sum(slower.values()) / sum(before.values()) < 1.02 < slower["run"] / before["run"]


def test_the_benchmark_names_code_that_no_longer_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LEFT_OUT, "middleware", [("tasks/sending.py", "no such code", "")])
    with pytest.raises(
        ValueError, match=r"middleware: expected once in tasks/sending\.py, found 0 times: no such code"
    ):
        copy_without(["middleware"], tmp_path)
