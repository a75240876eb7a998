"""One command for all figures: ``python -m tests.benchmarks [--quick] [--scale PART] [engine pushing database worker
peers kills poison starting imports admin]``."""

from __future__ import annotations

import argparse
import os
import platform

from django_fairque.tasks import signing

from . import admin, database, engine, imports, kills, peers, poison, pushing, starting, worker
from .project.settings import SECRET_KEY
from .table import Table

PARTS = {
    "engine": engine,
    "pushing": pushing,
    "database": database,
    "worker": worker,
    "peers": peers,
    "kills": kills,
    "poison": poison,
    "starting": starting,
    "imports": imports,
    "admin": admin,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="smaller sizes and fewer rounds")
    parser.add_argument("--scale", type=float, metavar="PART", help="of the admin's million tasks (0.01 if quick)")
    options = parser.parse_args()
    unknown = [part for part in options.parts if part not in PARTS]
    if unknown:
        parser.error(f"unknown part {unknown[0]!r}: expected one of {', '.join(PARTS)}")
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}"
    )
    signing.sign_with(SECRET_KEY)  # as the processes under measurement do; here there are no settings
    for name in options.parts or PARTS:
        table = Table(name)
        more = {"scale": options.scale} if name == "admin" else {}
        PARTS[name].run(table, quick=options.quick, **more)
        table.print()


if __name__ == "__main__":
    main()
