"""`@task`: what it makes of a function, and which mistakes it names when the module is imported."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import logging
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from django_fairque import Discard, Priority, Retry, TaskUsageError, TaskValidationError, task
from django_fairque.tasks import registry


def test_a_task_is_called_like_its_function() -> None:
    @task
    def add(a: int, b: int = 2) -> int:
        """Add."""
        return a + b

    assert add(1) == 3
    assert add(1, b=5) == 6
    assert add.__doc__ == "Add."
    assert registry.find(add.name) is add


def test_a_task_is_named_after_its_module_unless_a_name_is_given() -> None:
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


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"prioritty": 3}, "did you mean 'priority'"),
        ({"priority": 7}, "from 1 .* to 6"),
        ({"priority": True}, "got True"),
        ({"name": "a b"}, "1 to 200 letters"),
        ({"name": ""}, "1 to 200 letters"),
        ({"timeout": 0}, "more than 0"),
        ({"user": "nobody"}, "expected one of customer, n"),
        ({"user": 3}, "name of an argument or a callable"),
        ({"retry_on": "OSError"}, "exception class"),
        ({"backoff": {"bass": 1}}, "did you mean 'base'"),
        ({"backoff": {"jitter": 2}}, "fraction"),
        ({"delay": 5, "expires": 4}, "before it may start"),
        ({"batch": 0}, "from 1 to 1000"),
        ({"batch_wait": 1}, "give batch"),
        ({"batch": 5}, "one parameter"),
    ],
)
def test_a_wrong_option_is_reported_at_import(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(TaskUsageError, match=expected):

        @task(**options)
        def work(customer: str, n: int) -> None: ...


def test_only_functions_with_a_result_become_tasks() -> None:
    def numbers() -> Iterator[int]:
        yield 1

    async def later() -> AsyncIterator[int]:
        yield 1

    for generator in (numbers, later):
        with pytest.raises(TaskUsageError, match="a generator has no result"):
            task(generator)
    with pytest.raises(TaskUsageError, match="looks like a method"):

        class Mailer:
            @task
            def send(self) -> None: ...

    things: list[Any] = [len, functools.partial(len), staticmethod(uuid.uuid4), uuid.UUID(int=0).__str__, uuid.UUID]
    for thing in things:
        with pytest.raises(TaskUsageError, match="of a function"):
            task(thing)
    with pytest.raises(TaskUsageError, match="by name only"):
        task("mail.send")  # type: ignore[call-overload]
    with pytest.raises(TaskUsageError, match="name must be"):
        task(lambda: None)


def test_a_task_can_not_be_changed_in_place() -> None:
    @task
    def work() -> None: ...

    with pytest.raises(dataclasses.FrozenInstanceError):
        work.name = "other"  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        work.options.queue = "mail"  # type: ignore[misc]


def test_the_function_can_be_looked_at_through_its_task() -> None:
    @task
    async def work(a: int, *, b: str = "x") -> None:
        """Work."""

    assert (getattr(work, "__name__", ""), work.__doc__, work.__module__) == ("work", "Work.", __name__)
    assert str(inspect.signature(work)) == "(a: 'int', *, b: 'str' = 'x') -> 'None'"
    assert work.is_async
    assert repr(work) == f"<task {work.name!r}>"


@pytest.mark.parametrize("reason", [5, None, b"x"])
def test_a_reason_that_is_no_text_is_refused(reason: Any) -> None:
    for instruction in (lambda: Retry(1, reason), lambda: Discard(reason)):
        with pytest.raises(TaskUsageError, match="must be text"):
            instruction()


@pytest.mark.parametrize("delay", [-1, "5", float("nan"), timedelta(days=4000)])
def test_an_invalid_delay_of_a_retry_is_refused(delay: Any) -> None:
    with pytest.raises(TaskValidationError, match="the delay of Retry must be a number of seconds"):
        Retry(delay)


def test_a_text_in_the_place_of_a_delay_is_corrected() -> None:
    words = r"a number of seconds or a timedelta, got the text 'not yet'; .* Retry\(reason='not yet'\)"
    with pytest.raises(TaskUsageError, match=words):
        Retry("not yet")  # type: ignore[arg-type] # that is the mistake


def test_types_are_checked_before_anything_runs() -> None:
    """The comments are the test: mypy complains when there is nothing to ignore."""

    @task
    def plain(a: int, b: str = "") -> float:
        return a / 2

    @task(batch=10)
    def many(items: list[int]) -> None: ...

    @task(queue="mail")
    async def later(a: int) -> str:
        return str(a)

    def never_called() -> None:
        half: float = plain(1)
        word: str = plain(1)  # type: ignore[assignment]
        plain.enqueue(half)  # type: ignore[arg-type]
        plain.enqueue(1, c=word)  # type: ignore[call-arg]
        plain.using(priority=1).enqueue("1")  # type: ignore[arg-type]
        plain.using(prioritty=1)  # type: ignore[call-arg]
        many([1])
        many.enqueue(1)
        many.enqueue([1])  # type: ignore[call-overload]
        later.enqueue(1).wait(timedelta(seconds=1))
        later.enqueue("1")  # type: ignore[call-overload]

    assert callable(never_called)


def test_a_limit_of_memory_has_a_unit() -> None:
    for text, size in (("500MB", 500 * 2**20), ("2 gb", 2 * 2**30)):
        options = task(name=f"limited.{size}", max_memory=text)(lambda: None).options
        assert (options.max_memory, options.is_separate, options.isolated) == (size, True, False)
    assert task(name="isolated", isolated=True)(lambda: None).options.is_separate


@pytest.mark.parametrize("value", [500, "500", "MB", "0MB", "1.5GB", "-1MB", True])
def test_a_limit_of_memory_without_a_unit_is_refused(value: Any) -> None:
    with pytest.raises(TaskUsageError, match="500MB"):
        task(name="limited", max_memory=value)(lambda: None)


def test_log_lines_are_captured_from_a_level_on() -> None:
    known: list[tuple[Any, int | None]] = [(True, 0), (False, None), ("warning", 30), (logging.INFO, 20)]
    for number, (given, level) in enumerate(known):
        assert task(name=f"logs.{number}", capture_logs=given)(lambda: None).options.capture_logs == level


@pytest.mark.parametrize("value", ["LOUD", -1, 5000, 1.5, []])
def test_an_unknown_log_level_is_refused(value: Any) -> None:
    with pytest.raises(TaskUsageError, match="capture_logs must be True, False or the name or number of a log level"):
        task(name="logs", capture_logs=value)(lambda: None)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"capture_logs": True}, "capture_logs keeps the lines of one task"),
        ({"isolated": True}, "give one of them"),
    ],
)
def test_a_batch_is_neither_isolated_nor_captures_its_log(options: dict[str, Any], words: str) -> None:
    with pytest.raises(TaskUsageError, match=words):
        task(name="many", batch=5, **options)(lambda items: None)


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


def test_a_refused_declaration_is_not_registered() -> None:
    with pytest.raises(TaskUsageError):

        @task(name="refused", user="nobody")
        def work() -> None: ...

    assert registry.find("refused") is None


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("mail.sned_receipt", "did you mean 'mail.send_receipt'"),
        ("os.system", "; declare it in the module tasks of an app in INSTALLED_APPS"),
    ],
)
def test_the_error_for_an_unknown_option_has_a_hint(name: str, hint: str) -> None:
    @task(name="mail.send_receipt")
    def work() -> None: ...

    assert registry.find(name) is None
    assert hint in str(registry.not_registered(name))
