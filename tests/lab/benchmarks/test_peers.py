"""The runs of a peer's tasks are counted, so that it has a figure only if each ran exactly once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .peers import HERE, PeerError, interpreter
from .peers.counting import Runs
from .peers.systems import PEERS
from .table import Table
from .users import RATES, Load, add_figures
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


def test_pushes_are_timed_without_the_first_hundred(tmp_path: Path) -> None:
    result = tmp_path / "result"
    program = (
        "import counting, time\n"
        "sent = []\n"
        "counting.send(lambda payload: (sent.append(payload), time.sleep(0.01 if len(sent) == 1 else 0.001)), None)\n"
        "assert len(sent) == 120\n"
    )
    variables = {"PYTHONPATH": str(HERE), "BENCH_TASKS": "120", "BENCH_RESULT": str(result)}
    subprocess.run([sys.executable, "-c", program, "timed"], env={**os.environ, **variables}, check=True)
    seconds, processor = json.loads(result.read_text())
    assert seconds >= 0.001
    assert 0 < processor < seconds


def test_each_round_of_many_users_is_compared_with_the_same_round_of_a_peer() -> None:
    table = Table("users")
    rates = RATES[1], RATES[2]
    many = Load(10_000, 20_000).name
    add_figures(
        table,
        {(many, rates[0]): [100.0, 300.0], ("ardiq", rates[0]): [50.0, 100.0], (many, rates[1]): [7.0, 7.0]},
    )
    figures = {figure.name: figure.values for figure in table.figures}
    assert figures == {
        f"{many}: {rates[0]}": [100, 300],
        f"{many}: {rates[0]}: over ardiq": [2, 3],
        f"{many}: {rates[1]}": [7, 7],
        f"ardiq: {rates[0]}": [50, 100],
    }


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
