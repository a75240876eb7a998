"""The examples of docs/reference/metrics-and-signals.md run; the reference names every signal and every option of a task."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from django_fairque import Task, signals, task
from django_fairque.tasks.options import DECLARABLE, SENDABLE

DOCS = Path(__file__).parent.parent.parent / "docs"
OPTIONS = (DOCS / "reference" / "python.md").read_text()


def names_after(page: str, module: str) -> dict[str, Any]:
    """What the page's examples define, run one after the other."""
    names: dict[str, Any] = {"__name__": module}
    for example in re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL):
        exec(compile(example, f"docs/{page}", "exec", dont_inherit=True), names)
    return names


def test_the_examples_of_signals_run_and_every_signal_is_documented(capsys: pytest.CaptureFixture[str]) -> None:
    names = names_after("reference/metrics-and-signals.md", "shop.signals")
    try:
        signals.task_dead.send(sender="shop.work", task=Task.create("acme", 3, None), queue="default", error="no")
    finally:
        signals.task_dead.disconnect(names["tell_support"])
        signals.task_finished.disconnect(names["count_receipts"], sender="shop.tasks.send_receipt")
    assert capsys.readouterr().out == "shop.work of acme died in queue default: no\n"
    for name in signals.__all__:
        assert f"`{name}`" in (DOCS / "reference" / "metrics-and-signals.md").read_text()


@pytest.mark.parametrize("option", sorted(DECLARABLE | SENDABLE))
def test_every_option_is_documented(option: str) -> None:
    assert f"`{option}`" in OPTIONS


@pytest.mark.parametrize("option", sorted(DECLARABLE))
def test_every_option_of_a_task_has_a_default_and_a_text_in_help_too(option: str) -> None:
    (row,) = re.findall(
        rf"^\| `{option}` \| (.+?) \| (.+) \|$", OPTIONS.partition("### Options of a call")[0], re.MULTILINE
    )
    assert all(len(cell.strip()) > 0 for cell in row)
    help_text = " ".join((task.__doc__ or "").split())
    (described,) = re.findall(rf"``{option}``: (.+?)(?=(?:\. | - )``|$)", help_text)
    assert re.search(r"\bdefault\b", described)
