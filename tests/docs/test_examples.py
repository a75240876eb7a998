"""Every Python example of README and docs/ runs: here, or in a test of its page's own that checks what it does."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from django_fairque.conf import get_config, get_queue
from django_fairque.events import activation, field_tracker, rules
from django_fairque.tasks import registry
from django_fairque.tasks.transactions import after_commit

from . import blocks
from .stages import STAGES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_django import Settings
    from redis import Redis

    from django_fairque.engine.queue.queue import FairQueue
    from tests.servers import Server

TESTS = Path(__file__).parent.parent
OWN_TESTS = {
    "reference/metrics-and-signals.md": "tasks/test_docs.py",
    "index.md": "docs/test_guides.py",
    "quickstart.md": "docs/test_tutorial.py",
    "guides/testing.md": "testing/test_docs.py",
    "tutorial.md": "docs/test_tutorial.py",
}
"""Pages whose examples a test of their own runs, and checks what they do. Guides have `docs/test_guides.py`."""
RUNS_EXAMPLES = re.compile(r"```python|\b(?:names_after|examples|blocks)\(")


def own_test(page: Path) -> Path | None:
    """The test that runs the page's examples in place of the one below, if there is one."""
    by_folder = "docs/test_guides.py" if blocks.DOCS / "guides" in page.parents else "none"
    file = TESTS / OWN_TESTS.get(blocks.name(page), by_folder)
    return file if file.is_file() else None


HERE = [page for page in blocks.pages() if own_test(page) is None]
ELSEWHERE = [page for page in blocks.pages() if own_test(page)]


@pytest.fixture
def queue(server: Server, redis: Redis, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[FairQueue]:
    """The default queue on an empty server. Tasks and model events that examples declare are gone when the test ends."""
    monkeypatch.setattr(registry, "_tasks", {})
    monkeypatch.setattr(rules, "rule_registry", rules._RuleRegistry())
    monkeypatch.setattr(field_tracker, "tracked", {})
    activation.ready()
    settings.FAIRQUE = {"REDIS": {"URL": server.url}}
    yield get_queue()
    after_commit._unsent_counts.take()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("page", HERE, ids=blocks.name)
def test_the_examples_of_a_page_run_without_an_error(
    page: Path, queue: FairQueue, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: dict[str, Any] = {"__name__": f"shop.{page.stem.replace('-', '_')}", "os": os}
    names |= {
        "FAIRQUE": {},
        "CACHES": {},
        "INSTALLED_APPS": [],
        "SILENCED_SYSTEM_CHECKS": [],
    }  # a settings module has them
    for variable in re.findall(r'os\.environ\["(\w+)"\]', page.read_text()):
        monkeypatch.setenv(variable, "a-secret-of-the-readers")
    if stage := STAGES.get(blocks.name(page)):
        names |= stage(queue, tmp_path)
    server = settings.FAIRQUE
    for example in blocks.examples(page):
        if example.reason is None:
            example.run(names)
            settings.CACHES = {**settings.CACHES, **names["CACHES"]}
            settings.FAIRQUE = {**server, **names["FAIRQUE"]}
            get_config()  # raises what `manage.py check` would say of the configuration that the page shows
            settings.FAIRQUE = server


def test_pages_with_their_own_test_are_listed_and_their_blocks_are_run() -> None:
    for page in ELSEWHERE:
        file = own_test(page)
        assert file, page
        source = file.read_text()
        assert page.name in source or f'"{page.stem}"' in source, f"{file} does not name {page.name}"
        assert RUNS_EXAMPLES.search(source), f"{file} takes no block of Python out of a page"


def test_each_stage_belongs_to_a_page_with_tested_examples() -> None:
    assert set(STAGES) <= {blocks.name(page) for page in HERE}


def test_examples_that_are_not_run_have_a_reason() -> None:
    marked = [example for page in blocks.pages() for example in blocks.examples(page) if example.reason is not None]
    assert [example.place for example in marked if len(example.reason or "") < 10] == []


class TestTheMechanism:
    """Or pages whose examples are not found would look like pages that are right."""

    TEXT = (
        "# A\n\n```python\nx = 1\n```\n\n<!-- not run: needs a printer -->\n```python\nprint()\n```\n\n```sh\nls\n```\n"
    )

    def found(self, text: str) -> list[blocks.Example]:
        return blocks.examples(blocks.DOCS / "a.md", text)

    def test_blocks_are_found_with_their_lines_and_reasons(self) -> None:
        assert [(example.line, example.code, example.reason) for example in self.found(self.TEXT)] == [
            (4, "x = 1\n", None),
            (9, "print()\n", "needs a printer"),
        ]

    def test_an_error_points_into_the_page(self) -> None:
        (example,) = self.found("\n\n```python\n1 / 0\n```\n")
        with pytest.raises(ZeroDivisionError) as error:
            example.run({})
        assert (Path(error.traceback[-1].path).name, error.traceback[-1].lineno) == (
            "a.md",
            3,
        )  # doctest counts lines from 0

    def test_examples_may_use_await(self) -> None:
        (example,) = self.found("```python\nimport asyncio\nx = await asyncio.sleep(0, 5)\n```\n")
        names: dict[str, Any] = {}
        example.run(names)
        assert names["x"] == 5
