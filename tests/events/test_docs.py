"""The examples of docs/guides/model-events.md run, and do what the page says."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from django_fairque import events, task
from django_fairque.events import rules
from tests.shop.models import Customer, Order, Tag

if TYPE_CHECKING:
    from django_fairque.engine.queue.queue import FairQueue

PAGE = Path(__file__).parent.parent.parent / "docs" / "events.md"

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module of tasks that the page imports."""
    module: Any = ModuleType("shop.tasks")
    for name in ("greet", "send_receipt", "update_index"):

        def work(*args: Any) -> None: ...

        setattr(module, name, task(name=f"shop.tasks.{name}")(work))
    monkeypatch.setitem(sys.modules, "shop", ModuleType("shop"))
    monkeypatch.setitem(sys.modules, "shop.tasks", module)


def test_the_examples(queue: FairQueue, shop: None) -> None:
    names: dict[str, Any] = {"__name__": "shop.events"}
    for example in re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL):
        if "mptt" in example:  # tests/third_party has it
            continue
        exec(compile(example, "docs/guides/model-events.md", "exec"), names)
    assert [rule.problems for rule in rules.rules()] == [[]] * 7

    order = Order.objects.create(customer=Customer.objects.create(slug="acme"), total=200)
    order.status = "paid"
    order.save()
    order.tags.add(Tag.objects.create())
    pk = order.pk
    order.delete()
    due = [(each.name, each.payload["args"]) for each in queue.tasks("scheduled").items]
    assert due == [("shop.tasks.update_index", [pk, "paid"])]
    done = {(lease.name, lease.user_id, *lease.payload["args"]) for lease in queue.pop_batch(20, "w")}
    assert done == {
        ("shop.events.analyse", "acme", pk),
        ("shop.tasks.send_receipt", str(order.customer_id), order.customer_id, pk),
        ("shop.tasks.update_index", "default", pk, 200),
        ("shop.tasks.update_index", "default", pk, "changed"),
        ("shop.tasks.greet", "default", "acme"),
        ("shop.tasks.update_index", "default", pk, "delete"),
    }


def test_the_page_names_everything_there_is() -> None:
    text = PAGE.read_text()
    for name in set(events.__all__) - {"Condition", "Declaration", "Event"}:
        assert name in text
