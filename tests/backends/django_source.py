"""Fetch the source of the Django that is installed, for its tests: `python -m tests.backends.django_source DIR`.

The wheel has no tests. The source distribution is downloaded with pip, which trusts only the places that it is
configured for, and only its `tests/tasks` are unpacked. Needs only the standard library and a pip.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import django

LIMIT = 300
"""Seconds for the download and for the build with which pip reads the version."""


class NotFetchedError(Exception):
    """There is no pip, or it can't get the file."""


def fetch(target: Path) -> Path:
    """The folder of the source, with `tests/tasks` in it."""
    version = django.get_version()
    command = [*_pip(), "download", "--quiet", "--no-deps", "--no-binary", "django", "--dest", str(target)]
    # The pip that is found may belong to a Python that this Django does not support.
    command += ["--ignore-requires-python", f"django=={version}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    archives = [*target.glob("[Dd]jango-*.tar.gz")]
    if done.returncode or not archives:
        raise NotFetchedError(f"pip can't download the source of Django {version}: {done.stderr.strip()[-500:]}")
    with tarfile.open(archives[0]) as archive:
        wanted = [member for member in archive.getmembers() if "/tests/tasks/" in member.name and member.isfile()]
        for member in wanted:
            content = archive.extractfile(member)
            assert content is not None
            file = target / "django" / member.name.partition("/")[2]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content.read())
    archives[0].unlink()
    return target / "django"


def _pip() -> list[str]:
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    base = Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    if (
        base.exists()
        and subprocess.run([base, "-m", "pip", "--version"], capture_output=True, check=False).returncode == 0
    ):
        return [str(base), "-m", "pip"]
    if pip := shutil.which("pip"):
        return [pip]
    raise NotFetchedError("no pip found: environments made by uv have none")


if __name__ == "__main__":
    sys.stdout.write(f"{fetch(Path(sys.argv[1]))}\n")
