"""The runs of a peer's tasks are counted, so that it has a figure only if each ran exactly once."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from .peers import HERE, PeerError, interpreter
from .peers.counting import Runs
from .peers.systems import PEERS

if TYPE_CHECKING:
    from pathlib import Path


def counted(tmp_path: Path, *processes: list[int]) -> list[int]:
    """How often each of three tasks has run after processes ran those with these numbers."""
    file = tmp_path / "runs"
    file.write_bytes(bytes(3))
    variables = {**os.environ, "PYTHONPATH": str(HERE), "BENCH_TASKS": "3", "BENCH_RUNS": str(file)}
    for numbers in processes:
        program = f"import counting\nfor number in {numbers}:\n    counting.count(counting.PAYLOADS[number])"
        subprocess.run([sys.executable, "-c", program], env=variables, check=True)
    return list(Runs(str(file), 3).each)


def test_each_run_of_each_task_is_counted_over_all_processes(tmp_path: Path) -> None:
    assert counted(tmp_path, [0, 1, 1]) == [1, 2, 0]
    assert counted(tmp_path, [2, 0], [1, 2]) == [1, 1, 2]
    assert counted(tmp_path, [0] * 300) == [255, 0, 0]


def test_a_peer_whose_python_is_missing_gives_the_reason() -> None:
    assert interpreter(sys.version_info[:2]) == sys.executable
    with pytest.raises(PeerError, match=r"needs Python 3\.80, which is not installed here"):
        interpreter((3, 80))


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_has_a_module_with_tasks(name: str) -> None:
    source = (HERE / f"{PEERS[name].module}.py").read_text()
    assert "count(payload)" in source
    assert "stamp(sent)" in source
