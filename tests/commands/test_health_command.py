"""`fairque_health --worker-file`: how one worker is, told by exit codes and without a server."""

from __future__ import annotations

import json
import time
from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import call_command

from django_fairque.monitoring.health import STATUS_FILE_MAX_AGE_SECONDS

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_django import Settings


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


def test_the_health_of_a_healthy_worker_is_good(file: Path) -> None:
    file.write_text(written())
    assert health(file) == (0, "good\n")
    code, out = health(file, "--json")
    assert (code, json.loads(out)["server"]["worker"]["worker"]) == (0, "w1-7")


def test_a_worker_that_starts_or_is_unhealthy_is_degraded_and_says_why(file: Path) -> None:
    file.write_text(written("unhealthy", "no worker process is ready"))
    assert health(file) == (1, "degraded\n- no worker process is ready\n")
    file.write_text(written("starting"))
    assert health(file) == (1, "degraded\n- the worker is starting\n")


def test_a_worker_that_hangs_or_has_no_file_is_down(file: Path) -> None:
    code, out = health(file)
    assert code == 2
    assert f"--health-file {file}?" in out
    file.write_text(written(age=STATUS_FILE_MAX_AGE_SECONDS + 5))
    code, out = health(file)
    assert code == 2
    assert "for 15 s: it hangs" in out
    file.write_text(written(age=STATUS_FILE_MAX_AGE_SECONDS - 2))
    assert health(file)[0] == 0


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '"x"', '{"time": "x", "status": "healthy", "reasons": []}'])
def test_a_file_that_is_no_health_file_means_that_the_worker_is_down(file: Path, text: str) -> None:
    file.write_text(text)
    code, out = health(file)
    assert code == 2
    assert "is not the health file of a worker" in out
