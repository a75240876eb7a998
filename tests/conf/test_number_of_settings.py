"""The number of settings may only fall, and the reference lists each by its purpose."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from django_fairque.conf import MonitorConfig, QueueConfig, RedisConfig, WorkerConfig
from django_fairque.conf.redis import PARTS_OF_URL
from django_fairque.conf.sections import TopLevelOptions
from tests import source_rules as house

if TYPE_CHECKING:
    from django_fairque.engine.model.options import Options

REFERENCE = Path(house.__file__).parent.parent / "docs" / "reference" / "settings.md"
SECTIONS: dict[str, type[Options]] = {
    "": TopLevelOptions,
    "REDIS.": RedisConfig,
    "WORKER.": WorkerConfig,
    "QUEUE.": QueueConfig,
    "MONITOR.": MonitorConfig,
}
SETTINGS = 58
RARELY_NEEDED = 9
"""Both may only fall. An issue that adds a setting explains which existing one it can't use: docs/contributing/decisions/0040."""


def settings() -> list[str]:
    named = [
        f"{section}{name.upper()}"
        for section, kind in SECTIONS.items()
        for name in kind.option_names()
        if name not in kind.rarely_needed
        if not (kind is RedisConfig and name in PARTS_OF_URL)
    ]
    return ["CONFIG_FILE", *named]


def test_the_number_of_settings_does_not_grow() -> None:
    assert len(settings()) == SETTINGS, (
        "more: see docs/contributing/decisions/0040-fewer-settings.md; fewer: lower the number here"
    )


def test_the_number_of_rarely_needed_options_does_not_grow() -> None:
    assert sum(len(kind.rarely_needed) for kind in SECTIONS.values()) == RARELY_NEEDED


@pytest.mark.parametrize("kind", SECTIONS.values())
def test_each_rarely_needed_option_exists_and_is_accepted(kind: type[Options]) -> None:
    assert set(kind.rarely_needed) <= set(kind.option_names())


def test_each_part_of_the_url_is_an_option() -> None:
    assert set(PARTS_OF_URL) <= set(RedisConfig.option_names())


def test_the_reference_lists_each_setting_once_by_what_it_achieves() -> None:
    goals = REFERENCE.read_text().partition("## What do you want to achieve?")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in goals.splitlines() if line.startswith("| ")]
    listed = [name for row in rows if row != ["To…", "set"] for name in re.findall(r"`([A-Z_.]+)`", row[1])]
    assert sorted(listed) == sorted(settings())
