"""One command for all figures.

``python -m tests.lab.benchmarks [--quick] [--scale PART] [--peer NAME] [--rounds N] [--write FILE]
[--against COMMIT] [engine users idle pushing database worker work noisy nightly peers kills poison starting imports
features admin shards]``."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import django_fairque
from django_fairque.tasks import signing
from tests.servers import Server

from . import (
    admin,
    comparison,
    database,
    engine,
    features,
    idle,
    imports,
    kills,
    nightly,
    noisy,
    peers,
    poison,
    pushing,
    shards,
    starting,
    users,
    work,
    worker,
)
from .peers.systems import PEERS
from .processes import ROOT
from .project.settings import SECRET_KEY
from .table import Table

PARTS = {
    "engine": engine,
    "users": users,
    "idle": idle,
    "pushing": pushing,
    "database": database,
    "worker": worker,
    "work": work,
    "noisy": noisy,
    "nightly": nightly,
    "peers": peers,
    "kills": kills,
    "poison": poison,
    "starting": starting,
    "imports": imports,
    "features": features,
    "admin": admin,
    "shards": shards,
}
WITH_PEERS = ("users", "idle", "database", "work", "nightly", "peers")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.benchmarks", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="smaller sizes and fewer rounds")
    parser.add_argument("--scale", type=float, metavar="PART", help="of the admin's million tasks (0.01 if quick)")
    parser.add_argument(
        "--peer",
        action="append",
        choices=sorted(PEERS),
        default=[],
        help="of the peers, only this one (repeatable)",
    )
    parser.add_argument("--rounds", type=int, default=5, help="how often each peer is measured (default: %(default)s)")
    parser.add_argument(
        "--customers", type=int, default=nightly.CUSTOMERS, help="of the nightly job (default: %(default)s)"
    )
    parser.add_argument(
        "--write", type=Path, metavar="FILE", help="write figures, machine, versions and commit as JSON"
    )
    parser.add_argument(
        "--against", metavar="COMMIT", help="run this version and COMMIT alternately, and print the ratios"
    )
    parser.add_argument(
        "--pairs", type=int, default=10, help="with --against: how often each runs (default: %(default)s)"
    )
    parser.add_argument(
        "--own-benchmarks",
        action="store_true",
        help="with --against: measure COMMIT with the benchmark code of this version (its own cannot write figures)",
    )
    options = parser.parse_args()
    unknown = [part for part in options.parts if part not in PARTS]
    if unknown:
        parser.error(f"unknown part {unknown[0]!r}: expected one of {', '.join(PARTS)}")
    if options.against:
        arguments = [*options.parts, *(["--quick"] if options.quick else [])]
        arguments += ["--scale", str(options.scale)] if options.scale else []
        comparison.compare(options.against, arguments, options.pairs, own_benchmarks=options.own_benchmarks)
        return
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}"
    )
    load, figures, details = os.getloadavg()[0], {}, {}
    for name in options.parts or PARTS:
        signing.sign_with(SECRET_KEY)  # as the measured processes; a part that loads settings changes it
        table = Table(name)
        of_peers = {"only": options.peer, "rounds": options.rounds}
        of_peers |= {"customers": options.customers} if name == "nightly" else {}
        more = of_peers if name in WITH_PEERS else {"scale": options.scale} if name == "admin" else {}
        PARTS[name].run(table, quick=options.quick, **more)
        table.print()
        figures[name] = [figure.to_json() for figure in table.figures]
        details[name] = table.details
        if options.write:  # after each part, so that the figures remain if a later part fails
            written = {
                **_circumstances(),
                "load": load,
                "load_afterwards": os.getloadavg()[0],
                "parts": figures,
                "details": details,
            }
            options.write.write_text(json.dumps(written, indent=1) + "\n")


def _circumstances() -> dict[str, Any]:
    """Return the machine, the versions and the commit, on which the figures depend."""
    package = Path(django_fairque.__file__).parent
    git = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    with Server() as server, server.client() as client:
        found = client.info("server")
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": git.stdout.strip(),
        "package": str(package.relative_to(ROOT) if package.is_relative_to(ROOT) else package),
        "machine": {"architecture": platform.machine(), "system": platform.system(), "cores": os.cpu_count()},
        "versions": {
            "python": sys.version.split()[0],
            "server": f"{found.get('server_name', 'redis')} {found.get('valkey_version', found['redis_version'])}",
            **{name: version(name) for name in ("django", "redis", "hiredis", "pydantic")},
        },
    }


if __name__ == "__main__":
    main()
