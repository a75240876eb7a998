"""The pages of docs/howto: their examples run one after the other, on a real server, and a worker runs what they enqueue."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import get_commands, load_command_class

from django_fairque.conf import get_config, get_queue
from django_fairque.testing import run_tasks
from tests.docs.blocks import DOCS
from tests.docs.examples import command_lines, examples

if TYPE_CHECKING:
    from pathlib import Path

    from django.test import RequestFactory
    from pytest_django import Settings

    from django_fairque.engine.queue.queue import FairQueue

HOWTO = DOCS / "howto"
PAGES = {page.stem: page for page in sorted(HOWTO.glob("*.md"))}
WITH_COMMANDS = [*PAGES.values(), DOCS / "tutorial.md"]
MOST_LINES = 100

pytestmark = pytest.mark.django_db(transaction=True)


class Reader:
    """Types the examples of a page into one module, and sets what they set in the settings."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._server = settings.FAIRQUE["REDIS"]
        self.names: dict[str, Any] = {}

    def read(self, name: str) -> dict[str, Any]:
        self.names["__name__"] = f"shop.{name.replace('-', '_')}"
        for example in examples(PAGES[name], "python"):
            exec(compile(example, f"docs/guides/{name}.md", "exec"), self.names)
            self._configure(self.names.pop("FAIRQUE", {}))
            for setting in ("TASKS", "SECRET_KEY", "SECRET_KEY_FALLBACKS"):
                if setting in self.names:
                    setattr(self._settings, setting, self.names.pop(setting))
        return self.names

    def _configure(self, theirs: dict[str, Any]) -> None:
        """Their settings must be right; afterwards only their queues count, on the server of the tests."""
        if theirs:
            self._settings.FAIRQUE = {"REDIS": self._server, **theirs}
            get_config()
            self._settings.FAIRQUE = {"REDIS": self._server, "QUEUES": theirs.get("QUEUES", {})}


@pytest.fixture
def reader(queue: FairQueue, settings: Settings) -> Reader:
    return Reader(settings)


def states(name: str = "default") -> dict[str, int]:
    return {str(state): count for state, count in get_queue(name).get_stats().states.items() if count}


def drain(*names: str) -> None:
    while sum(run_tasks(name) for name in names or ("default",)):
        pass


@pytest.mark.parametrize("name", ["README"])
def test_pages_about_settings(reader: Reader, name: str) -> None:
    reader.read(name)


def test_every_page_has_a_test_and_is_in_the_index() -> None:
    tested = {name.removeprefix("test_").replace("_", "-") for name in globals() if name.startswith("test_")}
    assert set(PAGES) - tested - {"README"} == set()
    index = PAGES["README"].read_text()
    assert [name for name in PAGES if f"({name}.md)" not in index and name != "README"] == []


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_a_page_has_at_most_a_hundred_lines(page: Path) -> None:
    assert len(page.read_text().splitlines()) <= MOST_LINES


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: page.stem)
def test_the_commands_of_a_page_can_be_given(page: Path) -> None:
    for name, *arguments in command_lines(page):
        if name.startswith("fairque_"):
            command = load_command_class(get_commands()[name], name)
            command.create_parser("manage.py", name).parse_args(arguments)
