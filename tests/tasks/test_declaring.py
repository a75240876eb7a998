"""`@task`: what it makes of a function, and which mistakes it names when the module is imported."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest

from django_fairque import Priority, task
from django_fairque.tasks import registry
from django_fairque.tasks.errors import TaskUsageError


def test_a_task_is_called_like_its_function() -> None:
    @task
    def add(a: int, b: int = 2) -> int:
        """Add."""
        return a + b

    assert add(1) == 3
    assert add(1, b=5) == 6
    assert add.__doc__ == "Add."
    assert registry.find(add.name) is add


def test_its_name_is_where_it_stands_unless_one_is_given() -> None:
    @task
    def one() -> None: ...

    @task(name="mail.send")
    def two() -> None: ...

    assert one.name.startswith("tests.tasks.test_declaring.")
    assert one.name.endswith("one")
    assert two.name == "mail.send"


def test_using_returns_a_changed_copy() -> None:
    @task(priority=Priority.LOW)
    def work() -> None: ...

    urgent = work.using(priority=Priority.CRITICAL, delay=timedelta(seconds=3), user_id=7)
    assert (urgent.options.priority, urgent.options.delay, urgent.options.user_id) == (6, 3.0, "7")
    assert (work.options.priority, work.options.delay, work.options.user_id) == (2, None, None)
    assert urgent.name == work.name


def test_two_functions_cannot_share_a_name() -> None:
    @task(name="same")
    def one() -> None: ...

    with pytest.raises(TaskUsageError, match="two tasks are named 'same'"):

        @task(name="same")
        def two() -> None: ...


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"prioritty": 3}, "did you mean 'priority'"),
        ({"priority": 7}, "from 1 .* to 6"),
        ({"priority": True}, "got True"),
        ({"name": "a b"}, "1 to 200 letters"),
        ({"name": ""}, "1 to 200 letters"),
        ({"max_retries": -1}, "from 0 to 1000"),
        ({"timeout": 0}, "more than 0"),
        ({"delay": -1}, "got -1"),
        ({"user": "nobody"}, "expected one of customer, n"),
        ({"user": 3}, "name of an argument or a callable"),
        ({"retry_on": "OSError"}, "exception class"),
        ({"backoff": {"bass": 1}}, "did you mean 'base'"),
        ({"backoff": {"jitter": 2}}, "fraction"),
        ({"unique_for": 5, "debounce": 5}, "give one"),
        ({"delay": 5, "expires": 4}, "before it may start"),
        ({"batch": 0}, "from 1 to 1000"),
        ({"batch_wait": 1}, "give batch"),
        ({"batch": 5}, "one parameter"),
        ({"queue": ""}, "non-empty"),
    ],
)
def test_a_wrong_option_is_named_at_import(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(TaskUsageError, match=expected):

        @task(**options)
        def work(customer: str, n: int) -> None: ...


def test_only_functions_become_tasks() -> None:
    with pytest.raises(TaskUsageError, match="by name only"):
        task("mail.send")  # type: ignore[call-overload]
    with pytest.raises(TaskUsageError, match="of a function"):
        task(uuid.UUID)
