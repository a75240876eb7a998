"""The options of the configuration as tables: from the models that check them, with the words of the pages that explain them."""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

DOCS = Path(__file__).parents[2]
EXPLAINED = {"SCHEDULES": "guides/schedules.md", "MONITOR": "monitoring.md", "MONITOR.WEBHOOK": "monitoring.md"}
"""Where a section's options are explained; those of the others under a heading of docs/reference/configuration.md."""
ELSEWHERE = ("see above", "see below")
LINK = re.compile(r"\]\((?![a-z]+:)([^)]*)\)")


def sections() -> dict[str, type[BaseModel]]:
    """The sections by the heading under which they stand; an empty one is the top level."""
    from django_fairque.conf import FairQueueConfig, QueueConfig, RedisConfig, WorkerConfig
    from django_fairque.conf.redis import SentinelConfig
    from django_fairque.conf.sections import MonitorConfig, ScheduleConfig, WebhookConfig

    return {
        "": FairQueueConfig,
        "REDIS": RedisConfig,
        "REDIS.SENTINEL": SentinelConfig,
        "WORKER": WorkerConfig,
        "QUEUE": QueueConfig,
        "SCHEDULES": ScheduleConfig,
        "MONITOR": MonitorConfig,
        "MONITOR.WEBHOOK": WebhookConfig,
    }


def fields(section: str) -> dict[str, FieldInfo]:
    """The settings of a section. What a project cannot set is left out."""
    return {name: field for name, field in sections()[section].model_fields.items() if not field.exclude}


def table(section: str, page: str) -> str:
    """Markdown: each option with its default, what is accepted, and what it means.

    ``page`` is where the table will stand, relative to docs/: links are made to lead on from there.
    """
    rows = ["| option | default | accepted | meaning |", "|---|---|---|---|"]
    for name, field in fields(section).items():
        cells = (f"`{name.upper()}`", default(field), accepted(field), meaning(section, name.upper(), page))
        rows.append(f"| {' | '.join(map(_cell, cells))} |")
    return "\n".join(rows)


def _cell(text: str) -> str:
    """Bars that the text does not escape itself would end the cell."""
    return re.sub(r"(?<!\\)\|", r"\\|", text)


def accepted(field: FieldInfo) -> str:
    """The range and unit, in the words with which another value is refused."""
    return field.description or "a mapping"


def default(field: FieldInfo) -> str:
    """As it would be written in settings."""
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "required"
    if value is None:
        return "—"
    if isinstance(value, BaseModel):
        return "see below"
    return f"`{_written(value)}`"


def _written(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.15g}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)}: {_written(each)}" for key, each in value.items()) + "}"
    return repr(value) if not isinstance(value, str) else json.dumps(value)


def meaning(section: str, name: str, page: str) -> str:
    """What the page that explains the option says of it.

    Raises:
        LookupError: it says nothing.
    """
    source = EXPLAINED.get(section, "configuration.md")
    text = (DOCS / source).read_text()
    if source == "configuration.md":
        heading = section.rpartition(".")[2]
        level = rf"^#+ `{heading}`$" if heading else "^## Sources$"
        text = re.split(level, text, maxsplit=1, flags=re.MULTILINE)[-1]
        text = re.split(r"^#", text, maxsplit=1, flags=re.MULTILINE)[0]
    for line in text.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))]
        if line.startswith("| `") and f"`{name}`" in cells[0]:
            text = cells[-1] if cells[-1] not in ELSEWHERE else f"[see there](#{section.lower()})"
            return moved(text, source, page)
    raise LookupError(
        f"docs/{source} says nothing of {name} (section {section or 'top level'}): add its row to the table"
    )


def moved(text: str, source: str, page: str) -> str:
    """The links of one page of docs/, as they read from another."""

    def relative(link: re.Match[str]) -> str:
        path, hash_, anchor = link[1].partition("#")
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path)) if path else source
        return f"]({posixpath.relpath(target, posixpath.dirname(page) or '.')}{hash_}{anchor})"

    return LINK.sub(relative, text)
