"""A build does as many parts of the check as fit into its time, and says which it left out."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent
PARTS = {"first": 100, "second": 200, "third": 300}


def build(minutes: float, *, spent: int = 50, usual: int = 50) -> tuple[list[str], list[str]]:
    """What was done, and what was left out."""
    parts = "\n".join(
        f'{name}() {{ echo "done: {name}"; }}\npart {time} {name} "{name}"' for name, time in PARTS.items()
    )
    script = f". .ci/steps.sh\n. .ci/parts.sh\n{parts}\nSECONDS={spent}\nrun_parts {usual}\nsummary 0"
    result = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=ROOT,
        env={**os.environ, "FAIRQUE_CI_MINUTES": str(minutes)},
        capture_output=True,
        text=True,
        check=True,
    )
    return re.findall(r"^done: (.*)", result.stdout, re.MULTILINE), re.findall(
        r"^skipped: (.*)", result.stdout, re.MULTILINE
    )


def test_with_time_everything_is_done_once() -> None:
    done, left_out = build(60)
    assert sorted(done) == sorted(PARTS)
    assert left_out == []


def test_what_does_not_fit_is_left_out_and_named() -> None:
    done, left_out = build(4)  # 240 s, of which 50 are over
    assert done == ["first"]
    assert sorted(left_out) == ["second", "third"]


def test_a_slow_machine_does_less() -> None:
    assert build(4, spent=100)[0] == []
    assert sorted(build(6, spent=25)[0]) == sorted(PARTS)


def test_every_part_of_the_check_is_there() -> None:
    run = (ROOT / ".ci" / "run").read_text()
    parts = re.findall(r"^part \d+ (\w+) \"", run, re.MULTILINE)
    assert len(parts) == len(set(parts)) >= 10
    assert all(re.search(rf"^{part}\(\) {{", run, re.MULTILINE) for part in parts)
