"""`fairque_health` while the server accepts connections and answers nothing."""

from __future__ import annotations

import socket
import time
from io import StringIO
from typing import TYPE_CHECKING

import pytest
from django.core.management import call_command

if TYPE_CHECKING:
    from pytest_django import Settings


def test_a_server_that_does_not_answer_is_down_within_seconds(settings: Settings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings.FAIRQUE = {"REDIS": {"URL": f"redis://127.0.0.1:{silent.getsockname()[1]}"}}
        out, began = StringIO(), time.monotonic()
        with pytest.raises(SystemExit) as stop:
            call_command("fairque_health", stdout=out)
    assert (stop.value.code, out.getvalue().splitlines()[0]) == (2, "down")
    assert time.monotonic() - began < 8
