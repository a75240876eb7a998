"""Servers in directories of the test's own, which end with it."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from django_fairque.embedded import EmbeddedServer
from tests.embedded.helpers import clean_up

if TYPE_CHECKING:
    from collections.abc import Iterator


class MakeEmbedded(Protocol):
    def __call__(self, name: str | Path = ..., **options: Any) -> EmbeddedServer: ...


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory with a path short enough for a unix socket, which pytest's tmp_path is not."""
    path = Path(tempfile.mkdtemp(prefix="fq-", dir="/tmp")).resolve()
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def make_embedded(place: Path) -> Iterator[MakeEmbedded]:
    made: list[EmbeddedServer] = []

    def make(name: str | Path = ".fairque", **options: Any) -> EmbeddedServer:
        made.append(EmbeddedServer(place / name, **options))
        return made[-1]

    yield make
    for embedded in made:
        clean_up(embedded)


@pytest.fixture
def embedded(make_embedded: MakeEmbedded) -> EmbeddedServer:
    """A server that does not run yet."""
    return make_embedded()
