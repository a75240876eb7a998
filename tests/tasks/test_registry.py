"""Names: who may have them, and what is said of those that nobody has."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

import pytest

from django_fairque import TaskUsageError, task
from django_fairque.tasks import registry

if TYPE_CHECKING:
    from pathlib import Path


def test_a_module_that_is_imported_again_replaces_its_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "reloaded_tasks.py").write_text(
        "from django_fairque import task\n\n@task\ndef work() -> int:\n    return 1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("reloaded_tasks")
    before = registry.find("reloaded_tasks.work")
    again = importlib.reload(module)
    assert before is not None
    assert registry.find("reloaded_tasks.work") is again.work is not before
    del sys.modules["reloaded_tasks"]


def test_two_functions_cannot_share_a_name() -> None:
    @task(name="same")
    def one() -> None: ...

    with pytest.raises(TaskUsageError, match=r"two tasks are named 'same': .*one and .*two; give one of them another"):

        @task(name="same")
        def two() -> None: ...

    assert registry.find("same") is one


def test_what_is_refused_is_not_registered() -> None:
    with pytest.raises(TaskUsageError):

        @task(name="refused", user="nobody")
        def work() -> None: ...

    assert registry.find("refused") is None


@pytest.mark.parametrize(
    ("name", "hint"),
    [("mail.sned_receipt", "did you mean 'mail.send_receipt'"), ("os.system", "is its module imported")],
)
def test_a_name_that_nobody_has_is_explained(name: str, hint: str) -> None:
    @task(name="mail.send_receipt")
    def work() -> None: ...

    assert registry.find(name) is None
    assert hint in str(registry.not_registered(name))
