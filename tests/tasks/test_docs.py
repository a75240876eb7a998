"""The examples of docs/reference/metrics-and-signals.md run. The reference has every signal and every option of a task."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from django_fairque import Task, signals
from django_fairque.tasks.options import DECLARABLE, OPTIONS, SENDABLE
from tests.tools import task_options

DOCS = Path(__file__).parent.parent.parent / "docs"


def names_after(page: str, module: str) -> dict[str, Any]:
    """Run the page's examples one after the other, and return the names that they define."""
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


def test_the_table_has_every_option_that_a_declaration_or_a_call_accepts() -> None:
    assert set(OPTIONS) == DECLARABLE | SENDABLE


@pytest.mark.parametrize("option", sorted(DECLARABLE | SENDABLE))
def test_every_option_has_a_text_and_a_default(option: str) -> None:
    text = task_options.texts().get(option, "")
    assert re.match(r"[A-Z].*\.$", text), f"write the text of {option} as a docstring below its field in TaskOptions"
    assert OPTIONS[option].default


@pytest.mark.parametrize("file", task_options.generated(), ids=lambda file: file.name)
def test_the_tables_and_docstrings_have_the_options_of_the_table(file: Path) -> None:
    assert file.read_text() == task_options.generated()[file], "run: python -m tests.tools.task_options"
