from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from django_fairque.tasks import registry

if TYPE_CHECKING:
    from pytest_django import Settings


@pytest.fixture
def nobody_answers(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A project whose server does not exist, without tasks."""
    settings.FAIRQUE = {"REDIS": {"URL": "unix:///nonexistent/s.sock"}, "QUEUES": {"mail": {}}}
    monkeypatch.setattr(registry, "_tasks", {})
