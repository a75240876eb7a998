"""The template of the configuration's file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from django.core.management import CommandError, call_command

from django_fairque.conf import FairQueueConfig, MonitorConfig, QueueConfig, RedisConfig, WorkerConfig
from django_fairque.conf.sections import TopLevelOptions
from django_fairque.engine.model.options import Options
from tests.fixture_types import Settings

from .conftest import Run

SECTIONS: dict[str, type[Options]] = {
    "redis": RedisConfig,
    "worker": WorkerConfig,
    "queue": QueueConfig,
    "monitor": MonitorConfig,
}


def test_the_example_loads_and_changes_nothing(run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "fairque.yaml"
    file.write_text(run("fairque_config", "--example"))
    assert FairQueueConfig.from_yaml(file) == FairQueueConfig()
    assert not caplog.messages


def test_the_example_loads_as_the_file_of_settings(run: Run, tmp_path: Path, settings: Settings) -> None:
    file = tmp_path / "fairque.yaml"
    file.write_text(run("fairque_config", "--example").replace("concurrency: 8", "concurrency: 3"))
    settings.FAIRQUE = {"CONFIG_FILE": file}
    assert FairQueueConfig.from_settings().worker.concurrency == 3


def test_the_example_has_every_option_with_a_comment(run: Run) -> None:
    text = run("fairque_config", "--example")
    tree = yaml.safe_load(text)
    commented = set(re.findall(r"^ *# (\w+):", text, re.MULTILINE))
    assert set(FairQueueConfig.model_fields) <= {*tree, *commented}
    assert set(TopLevelOptions.option_names()) <= {*tree, *commented}
    for section, kind in SECTIONS.items():
        assert set(kind.option_names()) <= {*tree[section], *commented}, section
        lines = text.partition(f"\n{section}:\n")[2].partition("\n\n")[0].splitlines()
        assert lines[0].lstrip().startswith("# ")
    assert 'The page "Settings" of the documentation' in text
    assert 'The page "Schedules" has their options' in text


def test_the_options_that_are_commented_out_are_valid(run: Run, tmp_path: Path) -> None:
    text = run("fairque_config", "--example")
    text = re.sub(r"^  (host|port|db): .*\n", "", text, flags=re.MULTILINE)
    for name in re.findall(r"^ *# (\w+):", text, re.MULTILINE):
        if name not in ("url", "cache", "username", "password", "workers"):
            text = re.sub(rf"^( *)# ({name}:)", r"\1\2", text, flags=re.MULTILINE)
    (tmp_path / "fairque.yaml").write_text(text.replace("ssl: false", "ssl: true"))
    assert FairQueueConfig.from_yaml(tmp_path / "fairque.yaml").redis.sentinel is not None


def test_the_command_without_an_option_names_the_option() -> None:
    with pytest.raises(CommandError, match="--example"):
        call_command("fairque_config")
