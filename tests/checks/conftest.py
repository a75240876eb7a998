"""The checks as ``manage.py check`` runs them, on a configuration that a test gives."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest
from django.core.checks import run_checks

from django_fairque.conf import reset_config
from django_fairque.engine.transport.server_checks import check_server_info
from django_fairque.events import rules
from django_fairque.monitoring.server_probe import read_server_info
from django_fairque.tasks import registry
from tests import source_rules
from tests.servers import BINARY_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.core.checks import CheckMessage
    from pytest_django import Settings

    from tests.conftest import MakeServer
    from tests.servers import Server

PAGE = Path(source_rules.__file__).parent.parent / "docs" / "reference" / "checks.md"


class Check(Protocol):
    def __call__(self, fairque: Any, *, deploy: bool = False, **environment: str) -> list[CheckMessage]: ...


def ids(messages: list[CheckMessage]) -> list[str]:
    """``E001`` instead of ``fairque.E001``, which every one of them is."""
    return sorted(str(message.id).removeprefix("fairque.") for message in messages)


def anchors() -> set[str]:
    return set(re.findall(r'<a id="(\w+)"></a>`fairque\.\w+`', PAGE.read_text()))


@pytest.fixture(autouse=True)
def afresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith("FAIRQUE_") and name != BINARY_VARIABLE]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(registry, "_tasks", {})  # leave out the tasks that other tests have declared
    monkeypatch.setattr(rules, "rule_registry", rules._RuleRegistry())
    reset_config()
    yield
    reset_config()


@pytest.fixture
def fit(make_server: MakeServer) -> Server:
    """A server of the test's own with which nothing is wrong."""
    server = make_server("--appendonly", "yes", "--maxmemory", "1gb")
    with server.client() as client:
        kinds = {kind for kind, _ in check_server_info(read_server_info(client)[""])}
    if {"version", "hole"} & kinds:
        pytest.skip("this server is itself too old to be fit")
    return server


@pytest.fixture
def check(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Check:
    def check(fairque: Any, *, deploy: bool = False, **environment: str) -> list[CheckMessage]:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        settings.FAIRQUE = fairque
        found = run_checks(tags=["fairque"], include_deployment_checks=deploy)
        for message in found:
            number = str(message.id).removeprefix("fairque.")
            assert re.search(rf"[.?] Run manage\.py fairque_docs {number}$", str(message.hint))
            assert number.lower() in anchors()
        return found

    return check
