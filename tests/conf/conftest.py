"""Every test here begins without a configuration, and leaves none behind. Fixtures start clusters and sentinels."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from django_fairque.conf import get_config, reset_config, set_overrides
from django_fairque.engine.model.errors import ConfigurationError
from tests.servers import BINARY_VARIABLE
from tests.topologies import free_port, make_cluster, sentinels

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_django import Settings

    from django_fairque.conf import FairQueueConfig
    from tests.conftest import MakeServer


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith("FAIRQUE_") and name != BINARY_VARIABLE]:
        monkeypatch.delenv(name)
    settings.FAIRQUE = {"REDIS": {"HOST": "nowhere"}}
    set_overrides({})
    yield
    set_overrides({})
    reset_config()


class Configure:
    """Put sources in place and read them."""

    def __init__(self, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
        self._settings = settings
        self._monkeypatch = monkeypatch

    def __call__(self, fairque: Any = None, /, **environment: str) -> FairQueueConfig:
        for name, value in environment.items():
            self._monkeypatch.setenv(name, value)
        self._settings.FAIRQUE = fairque
        return get_config()

    def error(self, fairque: Any = None, /, **environment: str) -> str:
        """The message of the `ConfigurationError` that reading them raises."""
        with pytest.raises(ConfigurationError) as caught:
            self(fairque, **environment)
        return str(caught.value)


@pytest.fixture
def configure(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Configure:
    return Configure(settings, monkeypatch)


@pytest.fixture
def cluster(make_server: MakeServer) -> int:
    """The port of a cluster's only node."""
    ((port, _),) = make_cluster(make_server, 1)
    return port


@pytest.fixture
def sentinel(make_server: MakeServer, tmp_path: Path) -> Iterator[int]:
    """The port of a sentinel that knows a primary as "main"."""
    primary = free_port()
    make_server("--port", str(primary), "--bind", "127.0.0.1")
    with sentinels(tmp_path, primary, 1) as (port,):
        yield port
