"""Commands while the server accepts connections and answers nothing."""

from __future__ import annotations

import os
import signal
import time
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from django_fairque.management import base
from tests.fixture_types import MakeServer, Server, Settings

COMMANDS = [
    "fairque_check --repair",
    "fairque_dlq list",
    "fairque_format",
    "fairque_functions",
    "fairque_keys list",
    "fairque_organization list",
    "fairque_schedule next nightly",
    "fairque_stats",
    "fairque_task show t",
    "fairque_user pause acme",
]


@pytest.fixture
def frozen(make_server: MakeServer, settings: Settings) -> Server:
    server = make_server()
    settings.FAIRQUE = {"REDIS": {"URL": server.url}}
    os.kill(server.pid, signal.SIGSTOP)
    return server


@pytest.mark.usefixtures("frozen")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_server_that_does_not_answer_is_an_error_in_seconds(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "COMMAND_TIMEOUT_SECONDS", 0.3)
    began = time.monotonic()
    with pytest.raises(CommandError, match=r"did not answer|[Tt]ime"):
        call_command(*command.split(), stdout=StringIO(), stderr=StringIO())
    assert time.monotonic() - began < 4


@pytest.mark.usefixtures("frozen")
def test_the_health_of_a_server_that_does_not_answer_is_down_within_seconds() -> None:
    out, began = StringIO(), time.monotonic()
    with pytest.raises(SystemExit) as stop:
        call_command("fairque_health", stdout=out)
    assert (stop.value.code, out.getvalue().splitlines()[0]) == (2, "down")
    assert time.monotonic() - began < 8
