"""Runs a command beside a private PostgreSQL server: ``python -m tests.tools.postgres pytest tests/outbox``.

The server lives in a temporary directory, is reached by a unix socket there, and ends with the command.
"""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PLACES = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql*/bin")
MISSING = 3
"""Exit code when no server is installed."""


def binaries() -> Path | None:
    """Where `initdb` is; the newest version, if there are several."""
    on_path = shutil.which("initdb")
    if on_path:
        return Path(on_path).resolve().parent
    found = [
        directory for place in PLACES for directory in Path("/").glob(place[1:]) if (directory / "initdb").exists()
    ]
    return max(found, key=lambda directory: [int(part) for part in directory.parts if part.isdigit()], default=None)


def main(command: list[str]) -> int:
    programs = binaries()
    if programs is None:
        print("no PostgreSQL is installed here", file=sys.stderr)
        return MISSING
    # PostgreSQL refuses to run as root.
    user = "postgres" if os.geteuid() == 0 else getpass.getuser()
    with tempfile.TemporaryDirectory(prefix="fq-pg-") as name:
        place = Path(name)
        shutil.chown(place, user)
        data, log = place / "data", place / "log"

        def run(program: str, *arguments: str) -> None:
            full = [str(programs / program), *arguments]
            subprocess.run(
                full, user=user if os.geteuid() == 0 else None, cwd=place, check=True, stdout=subprocess.DEVNULL
            )

        run(
            "initdb",
            "--pgdata",
            str(data),
            "--username",
            "fairque",
            "--auth",
            "trust",
            "--encoding",
            "UTF8",
            "--no-sync",
        )
        options = f"-c listen_addresses= -c unix_socket_directories={place} -c fsync=off -c max_connections=200"
        run("pg_ctl", "--pgdata", str(data), "--log", str(log), "--options", options, "--wait", "start")
        try:
            environment = {
                **os.environ,
                "TEST_DATABASE_ENGINE": "django.db.backends.postgresql",
                "PGHOST": str(place),
                "PGUSER": "fairque",
            }
            return subprocess.run(command, env=environment, check=False).returncode
        finally:
            run("pg_ctl", "--pgdata", str(data), "--mode", "immediate", "stop")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
