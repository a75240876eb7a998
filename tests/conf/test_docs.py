"""docs/reference/settings.md names every option with its default."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from fairque_docs import options

from django_fairque.conf import FairQueueConfig, QueueConfig, RedisConfig, WorkerConfig
from tests import source_rules

if TYPE_CHECKING:
    from django_fairque.engine.model.options import Options

PAGE = Path(source_rules.__file__).parent.parent / "docs" / "reference" / "settings.md"
SECTIONS: dict[str, type[Options]] = {"REDIS": RedisConfig, "WORKER": WorkerConfig, "QUEUE": QueueConfig}


def rows(section: str) -> dict[str, str]:
    """Option -> default, from the tables of the section."""
    return {name: default for name, (default, _) in options.rows(PAGE.read_text(), section).items()}


@pytest.mark.parametrize("section", SECTIONS)
def test_every_option_is_documented_with_its_default(section: str) -> None:
    kind = SECTIONS[section]
    documented, fields = rows(section), {name: kind.model_fields[name] for name in kind.option_names()}
    assert sorted(documented) == sorted(name.upper() for name in fields)
    assert list(documented)[len(fields) - len(kind.rarely_needed) :] == [name.upper() for name in kind.rarely_needed]
    for name, field in fields.items():
        default = field.get_default(call_default_factory=True)
        written = documented[name.upper()]
        if default is None:
            assert written == "—", name
        elif name in ("sla", "lanes"):
            assert written == "see below"
        else:
            assert yaml.safe_load(written.strip("`")) == default, name


def test_the_example_file_can_be_read(tmp_path: Path) -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "fairque.yaml").write_text(example)
    config = FairQueueConfig.from_yaml(tmp_path / "fairque.yaml")
    assert set(config.workers) == {"web", "bulk"}
    assert config.workers["web"].users == ["*"]
    assert config.queue_config("mail").default_max_retries == 10
