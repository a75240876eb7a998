"""The runs of a peer's tasks are counted, so that it has a figure only if each ran exactly once."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .peers import HERE, PeerError, interpreter
from .peers.counting import Runs
from .peers.systems import PEERS
from .work import KINDS, rate


def counted(tmp_path: Path, *processes: list[int]) -> list[int]:
    """Return the number of runs of each of three tasks after each process ran the tasks with its numbers."""
    file = tmp_path / "runs"
    Runs.create(file, 3)
    variables = {**os.environ, "PYTHONPATH": str(HERE), "BENCH_TASKS": "3", "BENCH_RUNS": str(file)}
    for numbers in processes:
        program = f"import counting\nfor number in {numbers}:\n    counting.count(counting.PAYLOADS[number])"
        subprocess.run([sys.executable, "-c", program], env=variables, check=True)
    return list(Runs(str(file), 3).counts)


def test_runs_of_each_task_are_counted_over_all_processes(tmp_path: Path) -> None:
    assert counted(tmp_path, [0, 1, 1]) == [1, 2, 0]
    assert counted(tmp_path, [2, 0], [1, 2]) == [1, 1, 2]
    assert counted(tmp_path, [0] * 300) == [255, 0, 0]


def test_the_end_of_a_task_that_works_is_recorded(tmp_path: Path) -> None:
    file = tmp_path / "runs"
    Runs.create(file, 3)
    variables = {"PYTHONPATH": str(HERE), "BENCH_TASKS": "3", "BENCH_RUNS": str(file), "BENCH_WORK": "sleep 0.02"}
    program = (
        "import asyncio, counting\n"
        "counting.count(counting.PAYLOADS[2])\n"
        "asyncio.run(counting.acount(counting.PAYLOADS[0]))\n"
    )
    before = time.monotonic()
    subprocess.run([sys.executable, "-c", program], env={**os.environ, **variables}, check=True)
    runs = Runs(str(file), 3)
    assert list(runs.counts) == [1, 0, 1]
    never, first, second = runs.ends
    assert never == 0
    assert before + 0.02 < first <= second - 0.02 < time.monotonic()


def test_a_computing_task_takes_processor_time(tmp_path: Path) -> None:
    file = tmp_path / "runs"
    Runs.create(file, 1)
    variables = {"PYTHONPATH": str(HERE), "BENCH_TASKS": "1", "BENCH_RUNS": str(file), "BENCH_WORK": "compute 0.05"}
    program = "import counting, time\ncounting.count(counting.PAYLOADS[0])\nassert time.thread_time() >= 0.05"
    subprocess.run([sys.executable, "-c", program], env={**os.environ, **variables}, check=True)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "n0 n1 n2"),
        (("normal", "1", "3"), "n1 n2"),
        (("urgent", "0", "1"), "u0"),
        (("stamp",), "s s s"),
    ],
)
def test_the_arguments_of_a_peer_s_module_name_the_tasks_that_it_sends(
    arguments: tuple[str, ...], expected: str
) -> None:
    program = (
        "import counting\n"
        "counting.send(*(lambda payload, kind=kind: print(kind + str(payload)[7:8] * (kind != 's')) for kind in 'nsu'))\n"
    )
    variables = {"PYTHONPATH": str(HERE), "BENCH_TASKS": "3"}
    command = [sys.executable, "-c", program, *arguments]
    printed = subprocess.run(command, env={**os.environ, **variables}, check=True, capture_output=True, text=True)
    assert printed.stdout.split() == expected.split()


def test_a_rate_is_measured_in_the_middle_of_a_run() -> None:
    """Four slots; each task takes a second, and the first ones end ten seconds late."""
    ends = [10.0 + number // 4 for number in range(40)]
    assert rate(ends, 4) == 4
    assert rate([0.0] * 3 + ends[3:], 4) == 4


def test_each_benchmarked_queue_gets_enough_tasks_for_several_rounds() -> None:
    for kind in KINDS:
        for name in kind.names(list(PEERS)):
            assert kind.tasks(name) >= 6 * kind.slots
            assert name not in PEERS or PEERS[name].coroutines or not kind.coroutines


def test_a_peer_whose_python_is_missing_gives_the_reason() -> None:
    assert interpreter(sys.version_info[:2]) == sys.executable
    with pytest.raises(PeerError, match=r"needs Python 3\.80, which is not installed here"):
        interpreter((3, 80))


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_has_a_module_with_tasks(name: str) -> None:
    source = (HERE / f"{PEERS[name].module}.py").read_text()
    assert "count(payload)" in source
    assert "stamp(sent)" in source
