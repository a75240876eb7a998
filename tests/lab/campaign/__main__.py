"""``python -m tests.lab.campaign --seed N --minutes M [--faults a,b,...] [--runs N] [--json FILE] [--on-time]``: exits 1 on any
violation."""

from __future__ import annotations

import argparse
import json
import secrets
import sys
from pathlib import Path
from typing import Any

from django_fairque.tasks import signing
from tests.lab.campaign.run import run

from . import report
from .project.settings import SECRET_KEY
from .schedule import PER_SLICE, SLICE, draw
from .world import MEANS, World

LEASE = 2.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.campaign", description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="the schedule's (default: a new one)")
    parser.add_argument("--minutes", type=float, default=SLICE, help="of faults side by side (default: %(default)g)")
    parser.add_argument("--faults", default=",".join(PER_SLICE), help="default: %(default)s")
    parser.add_argument("--rate", type=float, default=MEANS, help="tasks pushed a second (default: %(default)g)")
    parser.add_argument("--json", type=Path, help="write everything that was found to this file")
    parser.add_argument("--keep", action="store_true", help="keep the journals and logs, and say where they are")
    parser.add_argument(
        "--on-time",
        action="store_true",
        help="fail as well when a recovery is late: for a machine with nothing else to do",
    )
    parser.add_argument(
        "--runs", type=int, default=1, help="number of runs, each on a new server and with the next seed"
    )
    options = parser.parse_args()
    faults = options.faults.split(",")
    unknown = [fault for fault in faults if fault not in PER_SLICE]
    if unknown:
        parser.error(f"unknown fault {unknown[0]!r}: expected some of {', '.join(PER_SLICE)}")
    if options.runs < 1:
        parser.error(f"--runs must be at least 1, got {options.runs}")
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    signing.sign_with(SECRET_KEY)  # its workers use the same key; here are no settings
    found = []
    for number in range(seed, seed + options.runs):
        found.append(_one(number, faults, options))
        report.print_table(found[-1])
        if options.json:  # after each: a long series may be cut short
            options.json.write_text(json.dumps(found if options.runs > 1 else found[0], indent=1))
    if options.runs > 1:
        report.print_together(found)
    return 1 if any(run["violations"] or (options.on_time and run["late"]) for run in found) else 0


def _one(seed: int, faults: list[str], options: argparse.Namespace) -> dict[str, Any]:
    schedule = draw(seed, options.minutes, faults)
    with World(seed, lease=LEASE, faults=faults, rate=options.rate, keep=options.keep) as world:
        done, verdict = run(world, schedule)
        return report.result(world, schedule, done, verdict)


if __name__ == "__main__":
    sys.exit(main())
