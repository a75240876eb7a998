"""The YAML file: its values, and messages about its mistakes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from django_fairque.conf import FairQueueConfig
from django_fairque.engine.model.errors import ConfigurationError
from django_fairque.engine.model.options import MAX_SWEEP_INTERVAL_SECONDS

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import Configure


def test_a_configuration_from_a_file_ignores_the_settings(configure: Configure, tmp_path: Path) -> None:
    configure({"REDIS": {"HOST": "h"}, "WORKER": {"PROCESSES": 3}}, FAIRQUE_WORKER__MAX_TASKS="4")
    (tmp_path / "fairque.yaml").write_text("worker: {max_memory_mb: 5}")
    config = FairQueueConfig.from_yaml(tmp_path / "fairque.yaml")
    assert (config.redis.host, config.worker.processes, config.worker.max_tasks) == ("127.0.0.1", 1, 0)
    assert config.worker.max_memory_mb == 5


@pytest.mark.parametrize("text", ["", "---", "# nothing", "redis:\nworker:\nqueue:\nqueues:\nworkers:\n"])
def test_an_empty_file_has_the_default_configuration(text: str, tmp_path: Path) -> None:
    (tmp_path / "fairque.yaml").write_text(text)
    assert FairQueueConfig.from_yaml(tmp_path / "fairque.yaml") == FairQueueConfig()


def test_a_queue_without_options_is_declared(tmp_path: Path) -> None:
    (tmp_path / "fairque.yaml").write_text("queues:\n  mail:\n")
    assert "mail" in FairQueueConfig.from_yaml(tmp_path / "fairque.yaml").queues


class TestMistakes:
    def error(self, tmp_path: Path, text: str | bytes) -> str:
        path = tmp_path / "fairque.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(ConfigurationError) as caught:
            FairQueueConfig.from_yaml(path)
        assert str(path) in str(caught.value)
        return str(caught.value).replace(str(path), "FILE")

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("- a", "FILE: expected a mapping; got a list of 1"),
            ("redis: [", "FILE: expected the path of a YAML file; FILE is not one: "),
            ("a: b: c", "line 1, column 5"),
            ("!!python/object:os.system {}", "could not determine a constructor"),
            (b"\xff\xfe\xff", "can't be read: "),
            (
                "queue: {prefix: a}\nqueue: {prefix: b}",
                "the key 'queue' is there a second time, line 2, column 1",
            ),
            (
                "queues:\n  mail:\n    sla: {HIGH: 1,\n      HIGH: 2}\n  web:\n  web:\n  web:\n",
                "the key 'web' is there a second time, line 6, column 3",
            ),
            ("queue: {sla: {HIGH: 1,\n  HIGH: 2}}", "the key 'HIGH' is there a second time, line 2, column 3"),
            ("[" * 1500, "FILE is nested too deeply"),
            ("queue: {prefix: 2026-13-45}", "FILE holds a date or a number that does not exist"),
            ("queue: {shards: " + "1" * 5000 + "}", "FILE holds a date or a number that does not exist"),
            ("config_file: other.yaml", "config_file in FILE: a file can't name another one"),
            ("redis: {prot: 3}", "redis.prot in FILE: unknown key; did you mean port?"),
            ("Redis: {PROT: 3}", "redis.prot in FILE: unknown key; did you mean port?"),
            ("worker: [a]", "worker in FILE: expected a mapping; got a list of 1"),
            ("queues: {Mail: }", "queues.Mail in FILE: expected a queue's name"),
            ("worker: {users: [a, 3]}", "worker.users in FILE, 1: expected a user id"),
        ],
    )
    def test_mistakes_in_a_file_are_reported_with_their_place(
        self, tmp_path: Path, text: str | bytes, expected: str
    ) -> None:
        assert expected in self.error(tmp_path, text)

    @pytest.mark.parametrize(
        "text", ["redis: {password: hunter2, url: 'redis://", "redis:\n  password: hunter2\n a: ["]
    )
    def test_an_error_does_not_quote_lines_with_passwords(self, tmp_path: Path, text: str) -> None:
        assert "hunter" not in self.error(tmp_path, text)

    def test_a_missing_file_is_refused(self, configure: Configure, tmp_path: Path) -> None:
        missing = tmp_path / "nowhere.yaml"
        with pytest.raises(ConfigurationError, match=r"(?m)nowhere.yaml can't be read: No such file or directory$"):
            FairQueueConfig.from_yaml(missing)
        assert configure.error({"CONFIG_FILE": missing}) == (
            f'settings.FAIRQUE["CONFIG_FILE"]: expected the path of a YAML file; {missing} can\'t be read: '
            "No such file or directory"
        )

    def test_a_configuration_file_that_is_no_path_is_refused(self, configure: Configure) -> None:
        assert configure.error({"CONFIG_FILE": 5}).endswith("expected the path of a YAML file; got 5")

    def test_a_merged_key_may_be_overridden(self, tmp_path: Path) -> None:
        path = tmp_path / "fairque.yaml"
        path.write_text("queues:\n  a: &a {shards: 2, result_ttl: 60}\n  b: {<<: *a, shards: 3}\n")
        queues = FairQueueConfig.from_yaml(path).queues
        assert [(queues[name].shards, queues[name].result_ttl) for name in "ab"] == [(2, 60), (3, 60)]


def test_a_file_may_use_the_earlier_name_of_the_sweep_interval(
    configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old names are read in YAML files and in any other source; a later source wins, whichever name it uses."""
    path = tmp_path / "fairque.yaml"
    path.write_text("queue: {queue_cleanup_interval: 3600}\nqueues: {mail: {queue_cleanup_interval: 2}, web: {}}\n")
    config = FairQueueConfig.from_yaml(path)
    assert config.queue.sweep_interval == config.queues["web"].sweep_interval == MAX_SWEEP_INTERVAL_SECONDS
    assert config.queues["mail"].sweep_interval == 2
    settings = {"CONFIG_FILE": path, "REDIS": {"HOST": "h"}, "QUEUE": {"SWEEP_INTERVAL": 4}}
    assert configure(settings).queue.sweep_interval == MAX_SWEEP_INTERVAL_SECONDS
    assert configure(settings, FAIRQUE_QUEUE__SWEEP_INTERVAL="3").queue.sweep_interval == 3
    monkeypatch.delenv("FAIRQUE_QUEUE__SWEEP_INTERVAL")
    assert configure({"REDIS": {"HOST": "h"}}, FAIRQUE_QUEUE__QUEUE_CLEANUP_INTERVAL="2").queue.sweep_interval == 2
    monkeypatch.delenv("FAIRQUE_QUEUE__QUEUE_CLEANUP_INTERVAL")
    assert configure.error({"REDIS": {"HOST": "h"}, "QUEUE": {"SWEEP_INTERVAL": 1, "QUEUE_CLEANUP_INTERVAL": 2}}) == (
        'settings.FAIRQUE["QUEUE"]["SWEEP_INTERVAL"]: expected once; got it a second time, as QUEUE_CLEANUP_INTERVAL'
    )


def test_options_in_code_may_use_the_earlier_name_of_the_sweep_interval() -> None:
    queues = FairQueueConfig.model_validate({"queues": {"mail": {"queue_cleanup_interval": 2}}}).queues
    assert queues["mail"].sweep_interval == 2
