"""The examples of docs/guides/testing.md run, as tests of a project that has what they name."""

from __future__ import annotations

import re
import unittest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from django_fairque import task
from django_fairque.tasks import registry
from django_fairque.testing import plugin

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_django import Settings

    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.testing.capture import Capture

DOCS = Path(__file__).parent.parent.parent / "docs"
PAGE = (DOCS / "testing.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.django_db


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch, settings: Settings, test_run: None) -> dict[str, Any]:
    """What the examples take for granted."""
    monkeypatch.setattr(registry, "_tasks", {})
    settings.FAIRQUE = {"REDIS": {"URL": "unix:///nowhere.sock"}}

    @task(user="customer")
    def send_receipt(customer: str, order: int) -> None: ...

    @task
    def add(left: int, right: int) -> int:
        return left + right

    def pay(order: int) -> None:
        send_receipt.enqueue("acme", order)

    return {"__name__": "shop.tests", "send_receipt": send_receipt, "add": add, "pay": pay, "order": 42}


def run(number: int, names: dict[str, Any]) -> dict[str, Any]:
    exec(compile(EXAMPLES[number], "docs/guides/testing.md", "exec"), names)
    return names


def test_there_are_five() -> None:
    assert len(EXAMPLES) == 5


def test_every_fixture_is_described() -> None:
    fixtures = [name for name in vars(plugin) if name.startswith("fairque")]
    reference = (DOCS / "reference" / "python-testing.md").read_text()
    assert len(fixtures) == 3
    for name in fixtures:
        assert f"fixture `{name}`" in PAGE
        assert f"testing.plugin.{name}\n" in reference


def test_capturing_with_pytest(names: dict[str, Any], fairque: Capture) -> None:
    run(1, names)["test_paying_sends_a_receipt"](fairque)


def test_running_with_pytest(names: dict[str, Any], fairque_run: Callable[..., int]) -> None:
    run(1, names)["test_a_paid_order_has_its_receipt"](fairque_run)


@pytest.mark.parametrize(("number", "name"), [(0, "PayTests"), (2, "ReceiptTests")])
def test_capturing_with_djangos_test_cases(names: dict[str, Any], number: int, name: str) -> None:
    run(0, names)
    case = run(number, names)[name]
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
    assert (result.testsRun, result.errors, result.failures) == (1, [], [])


def test_running_at_once(names: dict[str, Any]) -> None:
    run(3, names)


@pytest.mark.django_db(transaction=True)
def test_a_real_server(names: dict[str, Any], fairque_server: FairQueue) -> None:
    names["users_in_the_order_of_their_starts"] = ["a", "b"] * 10
    test = run(4, names)["test_nobody_waits_for_long"]
    for user in ["a", "b"] * 10:
        names["add"].using(user_id=user).enqueue(1, 2)
    test(fairque_server)
