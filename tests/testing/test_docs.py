"""The examples of docs/guides/testing.md run, as modules of a project and as its tests."""

from __future__ import annotations

import sys
import unittest
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from django_fairque.tasks import registry
from django_fairque.testing import plugin
from tests.docs.blocks import DOCS, examples

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_django import Settings

    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.testing.capture import Capture

PAGE = DOCS / "guides" / "testing.md"

pytestmark = pytest.mark.django_db


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch, settings: Settings, test_run: None) -> dict[str, Any]:
    """What ``shop/tests.py`` has when all examples are typed into their files."""
    monkeypatch.setattr(registry, "_tasks", {})
    settings.FAIRQUE = {"REDIS": {"URL": "unix:///nowhere.sock"}}
    monkeypatch.setitem(sys.modules, "shop", ModuleType("shop"))
    for name in ("tasks", "views", "tests"):
        monkeypatch.setitem(sys.modules, f"shop.{name}", ModuleType(f"shop.{name}"))
    for example in examples(PAGE):
        path = example.code.partition("\n")[0].removeprefix("# ")
        example.run(sys.modules[f"shop.{Path(path).stem}"].__dict__)
    return sys.modules["shop.tests"].__dict__


def test_every_pytest_fixture_is_documented() -> None:
    fixtures = [name for name in vars(plugin) if name.startswith("fairque")]
    reference = "".join(page.read_text() for page in (DOCS / "reference").glob("python.md"))
    assert len(fixtures) == 3
    for name in fixtures:
        assert f"fixture `{name}`" in PAGE.read_text()
        assert f"testing.plugin.{name}\n" in reference


def test_the_documented_example_of_capturing_with_pytest_passes(names: dict[str, Any], fairque: Capture) -> None:
    names["test_paying_enqueues_one_task"](fairque)


def test_the_documented_run_with_pytest_passes(names: dict[str, Any], fairque_run: Callable[..., int]) -> None:
    names["test_paying_runs_one_task"](fairque_run)


@pytest.mark.parametrize(("name", "tests"), [("PayTests", 2), ("ReceiptTests", 1)])
def test_the_documented_test_cases_of_django_pass(names: dict[str, Any], name: str, tests: int) -> None:
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(names[name]).run(result)
    assert (result.testsRun, result.errors, result.failures) == (tests, [], [])


BLOCKS = (
    "test_a_block",
    "test_the_answer_names_the_receipt",
    "test_a_wrong_order",
    "test_a_failure_is_retried_at_once",
)


@pytest.mark.parametrize("name", BLOCKS)
def test_each_documented_block_of_test_code_passes(names: dict[str, Any], name: str) -> None:
    names[name]()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("name", ["test_a_failed_task_is_retried", "test_globex_does_not_wait_for_acme"])
def test_the_documented_test_on_a_server_passes(names: dict[str, Any], name: str, fairque_server: FairQueue) -> None:
    names[name](fairque_server)


def test_every_test_on_the_page_is_run_by_this_file(names: dict[str, Any]) -> None:
    found = {name for name in names if name.startswith("test_") or name.endswith("Tests")}
    here = Path(__file__).read_text()
    assert [name for name in found if f'"{name}"' not in here] == []
