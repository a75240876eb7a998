"""Two versions measured alternately: ``--against COMMIT``.

The other commit is checked out into a temporary directory, and each round runs the benchmarks of both versions as processes of
their own, in alternating order, because the speed of a machine changes over minutes. A figure's ratio is calculated per round.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from .processes import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

BENCHMARKS = "tests/lab/benchmarks"

Medians = dict[tuple[str, str], tuple[float, str]]
"""``(part, figure)`` to its median and unit."""


def compare(commit: str, arguments: Sequence[str], pairs: int, *, own_benchmarks: bool) -> None:
    """Run the benchmarks of this checkout and of ``commit`` alternately, and print the ratio of each figure.

    Args:
        commit: what to compare with, as git names it.
        arguments: further arguments of the benchmark command (parts, ``--quick``).
        pairs: how often each version runs.
        own_benchmarks: run the benchmark code of this checkout on both versions, for a commit whose own cannot write figures.
    """
    rounds: list[tuple[Medians, Medians]] = []
    with checkout(commit) as other:
        if own_benchmarks:
            shutil.rmtree(other / BENCHMARKS)
            shutil.copytree(ROOT / BENCHMARKS, other / BENCHMARKS)
        for number in range(pairs):
            print(f"pair {number + 1} of {pairs}", file=sys.stderr, flush=True)
            trees = [ROOT, other] if number % 2 == 0 else [other, ROOT]
            measured = {tree: measure(tree, arguments) for tree in trees}
            rounds.append((measured[ROOT], measured[other]))
    _print(commit, rounds)


@contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """A temporary directory with the files of this commit."""
    with tempfile.TemporaryDirectory(prefix="fairque-benchmarks-") as directory:
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, stdout=subprocess.PIPE)
        subprocess.run(["tar", "-x", "-C", directory], input=archive.stdout, check=True)
        yield Path(directory)


def measure(tree: Path, arguments: Sequence[str]) -> Medians:
    """The figures of one run of the version in this directory."""
    with tempfile.TemporaryDirectory(prefix="fairque-benchmarks-") as directory:
        file = Path(directory) / "figures.json"
        subprocess.run(
            [sys.executable, "-m", "tests.lab.benchmarks", "--write", str(file), *arguments],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree)},
            check=True,
            stdout=subprocess.DEVNULL,
        )
        found = json.loads(file.read_text())
    if tree / found["package"] != tree / "django_fairque":
        raise RuntimeError(f"expected to measure the version in {tree}, but {found['package']} was imported")
    return {
        (part, figure["name"]): (figure["median"], figure["unit"])
        for part, figures in found["parts"].items()
        for figure in figures
    }


def ratios(rounds: Sequence[tuple[Medians, Medians]]) -> dict[tuple[str, str], list[float]]:
    """Per figure that both versions have: this version's value divided by the other's, per round."""
    common = [key for key in rounds[0][0] if all(key in figures for pair in rounds for figures in pair)]
    return {
        key: [
            1.0 if mine[key] == other[key] else mine[key][0] / (other[key][0] or float("nan")) for mine, other in rounds
        ]
        for key in common
    }


def _print(commit: str, rounds: Sequence[tuple[Medians, Medians]]) -> None:
    found = ratios(rounds)
    lines = [("figure", "here", commit, "ratio", "spread")]
    for (part, name), values in found.items():
        here, there = (statistics.median(pair[side][part, name][0] for pair in rounds) for side in (0, 1))
        unit = rounds[0][0][part, name][1]
        spread = f"{min(values):.3f} – {max(values):.3f}"
        lines.append(
            (
                f"{part}: {name}",
                f"{here:,.4g} {unit}",
                f"{there:,.4g} {unit}",
                f"{statistics.median(values):.3f}",
                spread,
            )
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
