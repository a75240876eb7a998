"""A peer has a figure only if each of its tasks ran exactly once; else the result gives the reason."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from .peers import HERE, PeerError, interpreter
from .peers.systems import PEERS

if TYPE_CHECKING:
    from pathlib import Path


def result(tmp_path: Path, runs: list[int]) -> Any:
    """What is written when three tasks were sent and those with these numbers ran, or None."""
    file = tmp_path / "result"
    program = f"import counting\nfor number in {runs}:\n    counting.count(counting.PAYLOADS[number])"
    variables = {**os.environ, "PYTHONPATH": str(HERE), "BENCH_TASKS": "3", "BENCH_RESULT": str(file)}
    subprocess.run([sys.executable, "-c", program], env=variables, check=True)
    return json.loads(file.read_text()) if file.exists() else None


def test_a_task_that_runs_twice_does_not_stand_for_one_that_did_not_run(tmp_path: Path) -> None:
    assert result(tmp_path, [0, 1, 1]) is None


def test_each_run_is_counted_also_one_after_the_last_task(tmp_path: Path) -> None:
    assert result(tmp_path, [2, 0, 1])["runs"] == 3
    assert result(tmp_path, [0, 1, 1, 2])["runs"] == 4
    assert result(tmp_path, [0, 1, 2, 2])["runs"] == 4


def test_a_peer_whose_python_is_missing_gives_the_reason() -> None:
    assert interpreter(sys.version_info[:2]) == sys.executable
    with pytest.raises(PeerError, match=r"needs Python 3\.80, which is not installed here"):
        interpreter((3, 80))


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_has_a_module_with_tasks(name: str) -> None:
    source = (HERE / f"{PEERS[name].module}.py").read_text()
    assert "count(payload)" in source
    assert "stamp(sent)" in source
