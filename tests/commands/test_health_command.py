"""`fairque_health --worker-file`: the health of one worker, as an exit code and without a server."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command

from django_fairque.monitoring.health import STATUS_FILE_MAX_AGE_SECONDS
from tests.fixture_types import Settings


@pytest.fixture(autouse=True)
def no_server(settings: Settings) -> None:
    settings.FAIRQUE = {"REDIS": {"URL": "unix:///nonexistent/s.sock"}, "QUEUE": {"REQUEST_TIMEOUT": 0}}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "health.json"


def health(file: Path, *words: str) -> tuple[int, str]:
    out = StringIO()
    with pytest.raises(SystemExit) as stop:
        call_command("fairque_health", "--worker-file", str(file), *words, stdout=out)
    assert isinstance(stop.value.code, int)
    return stop.value.code, out.getvalue()


def written(status: str = "healthy", *reasons: str, age: float = 0.0) -> str:
    facts: dict[str, Any] = {"time": time.time() - age, "pid": 7, "worker": "w1-7", "processes": []}
    return json.dumps({"status": status, "reasons": reasons, **facts})


@pytest.mark.parametrize(
    ("make", "code", "out"),
    [
        (written, 0, "good\n"),
        (partial(written, age=STATUS_FILE_MAX_AGE_SECONDS - 2), 0, "good\n"),
        (partial(written, "unhealthy", "no process is ready"), 1, "degraded\n- no process is ready\n"),
        (partial(written, "starting"), 1, "degraded\n- the worker is starting\n"),
        (partial(written, age=STATUS_FILE_MAX_AGE_SECONDS + 5), 2, "for 15 s: it hangs"),
        *(
            (partial(str, text), 2, "is not the health file of a worker")
            for text in ("", "{", "[]", "{}", '"x"', '{"time": "x", "status": "healthy", "reasons": []}')
        ),
    ],
)
def test_the_health_file_of_a_worker_decides_the_exit_code(
    file: Path, make: Callable[[], str], code: int, out: str
) -> None:
    file.write_text(make())
    found, printed = health(file)
    assert (found, out in printed) == (code, True)


def test_a_worker_without_a_health_file_is_down_and_json_names_the_worker(file: Path) -> None:
    code, out = health(file)
    assert (code, f"--health-file {file}?" in out) == (2, True)
    file.write_text(written())
    code, out = health(file, "--json")
    assert (code, json.loads(out)["server"]["worker"]["worker"]) == (0, "w1-7")
