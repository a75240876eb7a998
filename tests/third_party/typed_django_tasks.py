"""Tasks of `django.tasks` in a typed project; checked as `typed_tasks.py` is."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from typing_extensions import assert_type

from django_fairque.backends import task

if TYPE_CHECKING:
    from django_fairque.backends.compat import TaskContext


@task
def total(customer: str, amount: int = 1) -> int:
    return amount


@task(takes_context=True, priority=3)
def attempt(context: TaskContext[..., Any], customer: str) -> int:
    return context.attempt


def send() -> None:
    result = total.using(user_id=7, run_after=timedelta(hours=1)).enqueue("acme", 3)
    assert_type(result.return_value, int)
    attempt.enqueue("acme")
    total.enqueue(3)  # type: ignore[arg-type]
    total.using(user="ann")  # type: ignore[call-arg]
