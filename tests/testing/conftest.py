from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from django_fairque.conf import current, reset_config
from django_fairque.tasks import registry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_django import Settings


@pytest.fixture
def nobody_answers(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A project whose server does not exist, without tasks."""
    settings.FAIRQUE = {"REDIS": {"URL": "unix:///nonexistent/s.sock"}, "QUEUES": {"mail": {}}}
    monkeypatch.setattr(registry, "_tasks", {})


@pytest.fixture
def test_run(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tasks are captured as in the test runs of other projects."""
    monkeypatch.setattr(current, "interceptors", [])
    reset_config()
    yield
    reset_config()
