"""``python -m tests.campaign --seed N --minutes M [--faults a,b,...] [--json FILE] [--on-time]``: exits 1 on any violation."""

from __future__ import annotations

import argparse
import json
import secrets
import sys
from pathlib import Path

from django_fairque.tasks import signing

from . import report
from .project.settings import SECRET_KEY
from .running import run
from .schedule import PER_SLICE, SLICE, draw
from .world import MEANS, World

LEASE = 2.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
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
    options = parser.parse_args()
    faults = options.faults.split(",")
    unknown = [fault for fault in faults if fault not in PER_SLICE]
    if unknown:
        parser.error(f"unknown fault {unknown[0]!r}: expected some of {', '.join(PER_SLICE)}")
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    schedule = draw(seed, options.minutes, faults)
    signing.sign_with(SECRET_KEY)  # as its workers do; here there are no settings
    with World(seed, lease=LEASE, faults=faults, rate=options.rate, keep=options.keep) as world:
        done, verdict = run(world, schedule)
        found = report.result(world, schedule, done, verdict)
    report.print_table(found)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    return 1 if found["violations"] or (options.on_time and found["late"]) else 0


if __name__ == "__main__":
    sys.exit(main())
