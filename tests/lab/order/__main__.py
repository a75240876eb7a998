"""``python -m tests.lab.order``: play the same random worlds on this version and on the one before lanes, and compare the starts.

Exits with 1 if a task of any world starts at another place. ``--before`` names the other commit; ``--seed`` the first world.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from tests.lab.benchmarks.comparison import checkout
from tests.lab.benchmarks.processes import ROOT
from tests.servers import Server

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PLAYER = Path(__file__).with_name("player.py")
LANES = "django_fairque/engine/lua/lib/lanes.lua"


class Player:
    """A process that plays worlds on one version, on a separate server."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def send(self, seed: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seed}\n")
        self._process.stdin.flush()

    def receive(self) -> list[str]:
        """Return the ids of the tasks that were started in the world that was sent."""
        starts: list[str] = json.loads(self.read_line())
        return starts

    def read_line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


@contextmanager
def player(tree: Path) -> Iterator[Player]:
    """Start a player of the version in this folder."""
    with Server() as server:
        process = subprocess.Popen(
            [sys.executable, str(PLAYER), server.url],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            found = Player(process)
            package = Path(found.read_line().strip()).parent
            assert package == tree / "django_fairque", f"{package} was imported, not the version in {tree}"
            yield found
        finally:
            process.kill()
            process.communicate()


def first_difference(here: list[str], before: list[str]) -> int | None:
    """Return the index of the first start that differs; None if all are equal."""
    if here == before:
        return None
    return next((at for at, pair in enumerate(zip(here, before, strict=False)) if pair[0] != pair[1]), len(here))


@dataclass
class Comparison:
    """The worlds that were played, their equal starts, and the first other start of each world that ``different`` names."""

    worlds: int = 0
    starts: int = 0
    different: dict[int, int] = field(default_factory=dict)


def compare(here: Path, before: Path, seeds: Iterable[int]) -> Comparison:
    """Play the worlds with these seeds on the versions in both folders."""
    found = Comparison()
    with player(here) as one, player(before) as other:
        for seed in seeds:
            one.send(seed)
            other.send(seed)
            starts, expected = one.receive(), other.receive()
            at = first_difference(starts, expected)
            found.worlds += 1
            found.starts += len(starts) if at is None else at
            if at is not None:
                found.different[seed] = at
                print(f"world {seed}: start {at} is {starts[at : at + 3]}, before {expected[at : at + 3]}", flush=True)
    return found


def commit_before_lanes() -> str:
    command = ["git", "log", "--diff-filter=A", "--format=%h", "--", LANES]
    added = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    return f"{added[-1]}^"


def until(seconds: float, seed: int) -> Iterator[int]:
    begin = time.monotonic()
    for number in count(seed):
        if time.monotonic() - begin > seconds:
            return
        yield number


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.order", description=__doc__)
    parser.add_argument("--before", default="", help="the other commit; by default the one before lanes")
    parser.add_argument("--minutes", type=float, default=12, help="default: %(default)g")
    parser.add_argument("--seed", type=int, default=1, help="of the first world (default: %(default)s)")
    options = parser.parse_args()
    commit = options.before or commit_before_lanes()
    with checkout(commit) as tree:
        found = compare(ROOT, tree, until(options.minutes * 60, options.seed))
    differ = len(found.different)
    print(f"{found.starts:,} starts of {found.worlds:,} worlds are equal here and in {commit}; {differ} worlds differ")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
