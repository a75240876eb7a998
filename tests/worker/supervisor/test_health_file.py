"""When the health file is written. What it says of a living worker: `test_command`, `test_outage`."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from django_fairque.engine.model.errors import ConfigurationError
from django_fairque.worker.supervisor.supervisor import HEALTH_WRITE_SECONDS, HealthFile

if TYPE_CHECKING:
    from pathlib import Path


def facts(ready: int, done: int = 0) -> dict[str, Any]:
    return {"processes": [{"pid": str(pid), "ready": pid < ready, "done": done} for pid in range(2)]}


def test_changes_are_written_at_once_and_other_figures_once_a_second(tmp_path: Path) -> None:
    path = tmp_path / "health"
    file = HealthFile(path)

    def content() -> tuple[str, int, int]:
        content = json.loads(path.read_text())
        processes = content["processes"]
        return (
            content["status"],
            sum(process["ready"] for process in processes),
            max(process["done"] for process in processes),
        )

    file.update(0.0, ["no worker process is ready"], facts(0))
    assert content() == ("unhealthy", 0, 0)
    file.update(0.1, [], facts(1))
    assert content() == ("healthy", 1, 0)
    file.update(0.2, [], facts(2))
    assert content() == ("healthy", 2, 0)
    file.update(0.3, [], facts(2, done=5))
    assert content() == ("healthy", 2, 0), "a new count of done tasks is not written at once"
    file.update(0.2 + HEALTH_WRITE_SECONDS, [], facts(2, done=5))
    assert content() == ("healthy", 2, 5)
    file.update(0.3 + HEALTH_WRITE_SECONDS, ["the server does not answer"], facts(2, done=6))
    assert content() == ("unhealthy", 2, 6)


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
    assert [path.name for path in tmp_path.parent.iterdir() if path.name.startswith(f"{tmp_path.name}.")] == []


@pytest.mark.parametrize("content", ["precious", '{"a": 1}', "[]", "null"])
def test_a_file_that_is_no_health_file_is_neither_overwritten_nor_deleted(tmp_path: Path, content: str) -> None:
    path = tmp_path / "health.json"
    path.write_text(content)
    file = HealthFile(path)
    with pytest.raises(ConfigurationError, match="exists and is not a worker's health file"):
        file.check()
    file.remove()
    assert path.read_text() == content


def test_a_device_is_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ConfigurationError, match="exists and is not a worker's health file"):
        HealthFile(pipe).check()
    assert pipe.is_fifo()


def test_an_empty_file_and_the_file_of_an_earlier_worker_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "health.json"
    path.touch()
    for _ in range(2):
        HealthFile(path).check()
        assert json.loads(path.read_text())["status"] == "starting"


def test_another_worker_s_file_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "health.json"
    file = HealthFile(path)
    file.check()
    content = {**json.loads(path.read_text()), "pid": os.getpid() + 1}
    path.write_text(json.dumps(content))
    file.remove()
    assert json.loads(path.read_text()) == content


def test_a_symbolic_link_in_place_of_the_temporary_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / f"health.json.{os.getpid()}").symlink_to(tmp_path / "precious")
    HealthFile(tmp_path / "health.json").check()
    assert (tmp_path / "precious").read_text() == "precious"
