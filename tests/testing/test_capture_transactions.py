"""Tests of capturing in transactions: rolled back tasks are not captured, and the time per task does not grow."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest
from django.db import transaction
from django.test import TestCase

from django_fairque import task
from django_fairque.events import activation, on_create, rules
from django_fairque.testing import capture_tasks
from tests.shop.models import Customer

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_django import Settings

pytestmark = pytest.mark.usefixtures("nobody_answers")


@pytest.fixture
def work(nobody_answers: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(rules, "rule_registry", rules._RuleRegistry())
    activation.ready()

    @task(name="work")
    def work(n: int) -> None: ...

    return work


def lines_run(call: Callable[[], object]) -> int:
    """Lines of Python that a call runs: a measure of its time that does not drift."""
    count = 0

    def trace(frame: Any, event: str, _: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


class TestMany(TestCase):
    """In the transaction of Django's `TestCase`, each task has a separate commit hook."""

    def test_capturing_four_times_as_many_tasks_takes_four_times_as_long(self) -> None:
        @task(name="work")
        def work(n: int) -> None: ...

        def capture(number: int) -> None:
            with capture_tasks() as captured:
                for n in range(number):
                    work.enqueue(n)
                assert len(captured) == number

        capture(1)  # the first capture fills caches
        few = lines_run(lambda: capture(20))
        assert lines_run(lambda: capture(80)) < 5 * few


@pytest.mark.django_db
@pytest.mark.parametrize("on_commit", [True, False])
def test_events_that_are_rolled_back_are_never_sent(work: Any, settings: Settings, on_commit: bool) -> None:
    settings.FAIRQUE = {**settings.FAIRQUE, "ENQUEUE_ON_COMMIT": on_commit}
    on_create(Customer).enqueue(work, "pk")
    with capture_tasks() as captured:
        Customer.objects.create(pk=1)
        with pytest.raises(ZeroDivisionError), transaction.atomic():  # noqa: PT012
            Customer.objects.create(pk=2)
            work.enqueue(3)
            raise ZeroDivisionError
    assert [entry.args for entry in captured] == ([[1]] if on_commit else [[1], [3]])
