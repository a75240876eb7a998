"""When the health file is written. What it says of a living worker: `test_command`, `test_outage`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from django_fairque.engine.errors import ConfigurationError
from django_fairque.worker.health import EVERY, HealthFile

if TYPE_CHECKING:
    from pathlib import Path


def facts(ready: int, done: int = 0) -> dict[str, Any]:
    return {"processes": [{"pid": str(pid), "ready": pid < ready, "done": done} for pid in range(2)]}


def test_news_is_written_at_once_and_all_else_once_a_second(tmp_path: Path) -> None:
    path = tmp_path / "health"
    file = HealthFile(path)

    def said() -> tuple[str, int, int]:
        content = json.loads(path.read_text())
        processes = content["processes"]
        return content["status"], sum(each["ready"] for each in processes), max(each["done"] for each in processes)

    file.update(0.0, ["no worker process is ready"], facts(0))
    assert said() == ("unhealthy", 0, 0)
    file.update(0.1, [], facts(1))
    assert said() == ("healthy", 1, 0)
    file.update(0.2, [], facts(2))
    assert said() == ("healthy", 2, 0)
    file.update(0.3, [], facts(2, done=5))
    assert said() == ("healthy", 2, 0), "how much was done is no news"
    file.update(0.2 + EVERY, [], facts(2, done=5))
    assert said() == ("healthy", 2, 5)
    file.update(0.3 + EVERY, ["the server does not answer"], facts(2, done=6))
    assert said() == ("unhealthy", 2, 6)


def test_a_directory_that_is_missing_is_named_and_not_the_temporary_file(tmp_path: Path) -> None:
    path = tmp_path / "run" / "health.json"
    with pytest.raises(ConfigurationError) as caught:
        HealthFile(path).check()
    assert (
        str(caught.value)
        == f"--health-file {path}: the directory {path.parent} is missing; make it, or name another path"
    )


def test_a_path_that_can_not_be_written_is_named_and_not_the_temporary_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path, reason in ((tmp_path / "file" / "health.json", "Not a directory"), (tmp_path, "Is a directory")):
        with pytest.raises(ConfigurationError) as caught:
            HealthFile(path).check()
        assert str(caught.value) == f"--health-file {path} can't be written: {reason}"
    assert [each.name for each in tmp_path.parent.iterdir() if each.name.startswith(f"{tmp_path.name}.")] == []
