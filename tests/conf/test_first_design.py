"""The configuration file of the first design loads, and a page of the documentation has all of its names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

import django_fairque
from django_fairque import conf
from django_fairque.conf import FairQueueConfig, QueueConfig, RedisConfig, WorkerConfig
from django_fairque.engine.model import errors
from django_fairque.engine.model.errors import ConfigurationError
from django_fairque.engine.model.options import MAX_SWEEP_INTERVAL_SECONDS
from django_fairque.engine.model.task import Task
from tests import source_rules

if TYPE_CHECKING:
    from django_fairque.engine.model.options import Options

FILE = Path(__file__).parent / "first-design.yaml"
PAGE = Path(source_rules.__file__).parent.parent / "docs" / "contributing" / "upgrading-from-the-first-design.md"
KINDS: dict[str, type[Options]] = {"redis": RedisConfig, "worker": WorkerConfig, "queue": QueueConfig}
KEYS = dict(re.findall(r"^\| `([a-z]+\.\w+)` \| (.+?) \|", PAGE.read_text(), re.MULTILINE))
"""The keys that the page lists, each with the key of today."""
(ROW_OF_TASK,) = re.findall(r"^\| `Task\.create`.*$", PAGE.read_text(), re.MULTILINE)


def test_a_file_of_the_first_design_is_loaded_with_its_values() -> None:
    config = FairQueueConfig.from_yaml(FILE)
    assert (config.redis.host, config.redis.socket_timeout, config.redis.password) == ("localhost", 5.0, None)
    worker = config.worker
    assert (worker.id, worker.users) == ("worker-001", ["user:1", "user:3", "user:5"])
    assert worker.steal == ["user:2", "user:4", "user:6", "user:7"]
    assert (worker.poll_interval, worker.task_timeout, worker.concurrency) == (1.0, 300.0, 10)
    assert worker.shutdown_timeout == 30.0
    queue = config.queues["default"]
    assert (queue.max_retry_attempts, queue.default_max_retries, queue.default_task_timeout) == (3, 3, 300.0)
    assert (queue.pipeline_batch_size, queue.sweep_interval) == (100, MAX_SWEEP_INTERVAL_SECONDS)


class TestValidation:
    def test_a_valid_file_of_the_first_design_has_no_mistakes(self) -> None:
        config = FairQueueConfig.from_yaml(FILE)
        config.validate_all()
        for section in (config.redis, config.worker, config.queue, *config.queues.values()):
            section.validate()

    @pytest.mark.parametrize(
        ("section", "mistakes"),
        [
            (
                QueueConfig.model_construct(max_deliveries=0, default_max_retries=-1),
                ["QueueConfig.max_deliveries: ", "QueueConfig.default_max_retries: "],
            ),
            (RedisConfig().model_copy(update={"port": 0, "db": -1}), ["RedisConfig.port: ", "RedisConfig.db: "]),
            (
                WorkerConfig.model_construct(users=["a"], steal=["a"]),
                ["WorkerConfig.steal: expected users that are not in users"],
            ),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_a_section_reports_all_its_mistakes(self, section: Any, mistakes: list[str]) -> None:
        with pytest.raises(ConfigurationError) as caught:
            section.validate()
        for mistake in mistakes:
            assert mistake in str(caught.value)

    def test_the_mistakes_of_all_sections_are_reported(self) -> None:
        config = FairQueueConfig().model_copy(
            update={
                "redis": RedisConfig.model_construct(port=0),
                "queue": QueueConfig.model_construct(max_deliveries=0),
                "workers": {"w": WorkerConfig.model_construct(id="w", queues=["mial"], processes=0)},
            }
        )
        with pytest.raises(ConfigurationError) as caught:
            config.validate_all()
        for key in ("redis.port", "queue.max_deliveries", "workers.w.processes"):
            assert f"FairQueueConfig.{key}: " in str(caught.value)

    def test_sections_that_do_not_fit_together_are_reported(self) -> None:
        config = FairQueueConfig().model_copy(update={"worker": WorkerConfig(queues=["mial"])})
        with pytest.raises(ConfigurationError, match=r"worker\.queues: unknown queue 'mial'"):
            config.validate_all()


class TestPage:
    def test_each_key_of_the_file_missing_from_the_page_is_still_valid(self) -> None:
        for section, options in yaml.safe_load(FILE.read_text()).items():
            for name in options:
                assert f"{section}.{name}" in KEYS or name in KINDS[section].option_names()

    @pytest.mark.parametrize(("key", "today"), KEYS.items())
    def test_each_key_listed_on_the_page_is_accepted_or_removed(self, key: str, today: str) -> None:
        section, name = key.split(".")
        kind = KINDS[section]
        if today == "gone":
            with pytest.raises(ConfigurationError, match=f"{name}: unknown key"):
                kind.model_validate({name: 1})
        else:
            assert today == f"`{section}.{kind.renamed.get(name, name)}`"
            assert today.strip("`").partition(".")[2] in kind.option_names()

    def test_the_page_lists_every_renamed_key(self) -> None:
        renamed = {f"{section}.{name}" for section, kind in KINDS.items() for name in kind.renamed}
        assert renamed <= set(KEYS)

    @pytest.mark.parametrize(
        ("owner", "name"), re.findall(r"`(\w+Config)\.(\w+)", PAGE.read_text().partition("## Classes and methods")[2])
    )
    def test_each_attribute_of_the_configuration_exists(self, owner: str, name: str) -> None:
        kind = getattr(conf, owner)
        assert hasattr(kind, name) or name in kind.model_fields or f"`{owner}.{name}` | gone" in PAGE.read_text()

    @pytest.mark.parametrize("name", re.findall(r"`\.(\w+)", ROW_OF_TASK))
    def test_each_method_of_a_task_exists(self, name: str) -> None:
        assert callable(getattr(Task, name))

    @pytest.mark.parametrize(
        ("path", "today"), [("DLQEntry.create", "queue.fail("), ("StatsFormatter", "fairque_stats")]
    )
    def test_a_name_that_is_gone_is_listed_with_its_replacement(self, path: str, today: str) -> None:
        (row,) = re.findall(rf"^\| `{path}` \| gone \| .*$", PAGE.read_text(), re.MULTILINE)
        assert today in row
        owner, _, method = path.partition(".")
        assert not hasattr(getattr(django_fairque, owner, None), method or owner)

    @pytest.mark.parametrize("name", re.findall(r"`(\w+Error)`", PAGE.read_text()))
    def test_the_error_classes_of_the_first_design_exist(self, name: str) -> None:
        assert issubclass(getattr(errors, name), errors.FairQueueError)
