"""The examples of docs/tasks.md run, in their order, and the page names every option."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from django_fairque.tasks.execution import Run, execute, prepare, run_batch
from django_fairque.tasks.options import DECLARABLE, SENDABLE

if TYPE_CHECKING:
    from django_fairque.engine.queue import FairQueue
    from django_fairque.tasks.services import Services

PAGE = (Path(__file__).parent.parent.parent / "docs" / "tasks.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.django_db(transaction=True)
def test_the_examples_run(queue: FairQueue, services: Services) -> None:
    names: dict[str, Any] = {"__name__": "shop.tasks"}
    for example in EXAMPLES:
        exec(compile(example, "docs/tasks.md", "exec"), names)
    for parcel in ("lost", "on its way", "here"):
        names["collect"].enqueue("acme", parcel)
    names["index"].enqueue({"owner": "acme"})
    kinds: dict[str, int] = {}
    while lease := queue.pop("w"):
        run = prepare(lease, services)
        assert isinstance(run, Run)
        (outcome,) = run_batch([run]) if run.definition.options.batch else [execute(run)]
        queue.settle([outcome])
        kinds[f"{run.definition.name} {outcome.kind}"] = kinds.get(f"{run.definition.name} {outcome.kind}", 0) + 1
    assert kinds == {
        "shop.tasks.send_receipt finish": 102,
        "shop.tasks.collect discard": 1,
        "shop.tasks.collect later": 1,
        "shop.tasks.collect finish": 1,
        "shop.tasks.index finish": 1,
        "shop.tasks.index fail": 1,
    }


@pytest.mark.parametrize("option", sorted(DECLARABLE | SENDABLE))
def test_every_option_is_documented(option: str) -> None:
    assert f"`{option}`" in PAGE
