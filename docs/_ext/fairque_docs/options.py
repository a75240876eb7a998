"""The tables of options on the page about settings: the build adds the values that each option accepts, from the models.

The page has a row for each option with its default and its meaning. A comment names the section in the line before a table:
``<!-- options: QUEUE -->``. A section may have several tables.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo
    from sphinx.application import Sphinx

PAGE = "reference/settings"
TOP_LEVEL = "top level"
TABLE = re.compile(r"^<!-- options: (?P<section>[A-Za-z. ]+) -->\n(?P<rows>(?:\|.*\n)+)", re.MULTILINE)
FILE_OPTION = "CONFIG_FILE"
"""An option of the top level that names a source of the configuration, and is no field of the configuration itself."""
_BAR = re.compile(r"(?<!\\)\|")


def sections() -> dict[str, type[BaseModel]]:
    """The sections by the names that the page has for them."""
    from django_fairque.conf import FairQueueConfig, QueueConfig, RedisConfig, WorkerConfig
    from django_fairque.conf.redis import SentinelConfig
    from django_fairque.conf.sections import MonitorConfig, PlanConfig, ScheduleConfig, WebhookConfig
    from django_fairque.engine.model.options import LanesConfig

    return {
        TOP_LEVEL: FairQueueConfig,
        "REDIS": RedisConfig,
        "REDIS.SENTINEL": SentinelConfig,
        "WORKER": WorkerConfig,
        "QUEUE": QueueConfig,
        "QUEUE.LANES": LanesConfig,
        "PLANS": PlanConfig,
        "SCHEDULES": ScheduleConfig,
        "MONITOR": MonitorConfig,
        "MONITOR.WEBHOOK": WebhookConfig,
    }


def fields(section: str) -> dict[str, FieldInfo]:
    """The settings of a section by the names that projects write. Options that a project cannot set are left out."""
    return {name.upper(): field for name, field in sections()[section].model_fields.items() if not field.exclude}


def with_accepted_values(app: Sphinx, docname: str, source: list[str]) -> None:
    """Complete the tables of the page before Sphinx reads it."""
    if docname == PAGE:
        source[0] = completed(source[0])


def completed(page: str) -> str:
    """Return the page with a column for the accepted values in each table of options.

    Raises:
        LookupError: a row names an option that does not exist.
    """
    return TABLE.sub(_with_column, page)


def _with_column(table: re.Match[str]) -> str:
    known = fields(table["section"])
    lines = []
    for row, line in enumerate(table["rows"].splitlines()):
        option, default, meaning = cells(line)
        name = option.strip("`")
        if row == 0:
            new = "accepted"
        elif row == 1:
            new = "---"
        elif name == FILE_OPTION:
            new = "a path"
        elif name in known:
            new = accepted(known[name])
        else:
            raise LookupError(f"docs/{PAGE}.md names {name}, which is no option of {table['section']}")
        lines.append(f"| {option} | {default} | {_BAR.sub(chr(92) + '|', new)} | {meaning} |\n")
    return "".join(lines)


def cells(line: str) -> list[str]:
    """The cells of a row of a table."""
    return [cell.strip() for cell in _BAR.split(line.strip())[1:-1]]


def rows(page: str, section: str) -> dict[str, tuple[str, str]]:
    """The default and the meaning of each option of a section, as the page has them."""
    found: dict[str, tuple[str, str]] = {}
    for table in TABLE.finditer(page):
        if table["section"] == section:
            for line in table["rows"].splitlines()[2:]:
                option, default, meaning = cells(line)
                found[option.strip("`")] = (default, meaning)
    return found


def accepted(field: FieldInfo) -> str:
    """The range and the unit, in the words with which another value is refused."""
    return field.description or "a mapping"
