"""Tasks by their names, and when they are sent."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

import pytest

from django_fairque import TaskUsageError, task
from django_fairque.tasks import registry

from .conftest import ids

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    from pytest_django import Settings

    from .conftest import Check

HERE = {"REDIS": {"HOST": "localhost"}}
ONE = "from django_fairque import task\n\n@task\ndef work() -> int:\n    return 1\n"
TWO = ONE + "\n@task\ndef work() -> int:\n    return 2\n"
LIMITS = "from django_fairque import Concurrency, Rate, task\n\n"
FACTORY = (
    "from django_fairque import task\n\n"
    "def make(n):\n    @task\n    def work():\n        return n\n    return work\n\n"
    "one, two = make(1), make(2)\n"
)


class Source:
    """A module that a test writes, imports and writes again."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "shop_tasks.py"

    def load(self, text: str) -> ModuleType:
        self._file.write_text(text)
        importlib.invalidate_caches()
        known = sys.modules.get("shop_tasks")
        return importlib.reload(known) if known else importlib.import_module("shop_tasks")


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "shop_tasks", raising=False)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # two versions of one size and second would be taken for one
    return Source(tmp_path)


class TestMiddleware:
    def test_middleware_of_the_settings_and_of_tasks_is_checked(self, check: Check, source: Source) -> None:
        of_task = "@task(middleware=['shop_tasks.work', 'shop_tasks.gone'])\ndef other(): ...\n"
        source.load(f"{ONE}\n{of_task}")
        messages = check({**HERE, "MIDDLEWARE": ["no.such.Middleware", "django_fairque.TaskMiddleware"]})
        assert ids(messages) == ["E017"] * 3
        texts = [message.msg for message in messages]
        assert [text.partition(" can't be used: ")[0] for text in texts] == [
            "the setting MIDDLEWARE",
            *["the task 'shop_tasks.other'"] * 2,
        ]
        assert "got 'no.such.Middleware': No module named 'no'" in texts[0]
        assert "'shop_tasks.work' is a TaskDefinition" in texts[1]
        assert "does not define a" in texts[2]


class TestDuplicates:
    def test_two_functions_with_one_task_name_in_a_module_are_an_error(self, check: Check, source: Source) -> None:
        module = source.load(TWO)
        (message,) = check(HERE)
        assert ids([message]) == ["E011"]
        assert message.msg.startswith("two functions are registered as the task 'shop_tasks.work': shop_tasks.work (")
        assert "shop_tasks.py:3) and shop_tasks.work (" in message.msg
        assert message.msg.endswith("shop_tasks.py:7)")
        assert registry.find("shop_tasks.work") is module.work  # the registry has the module's own function

    def test_a_function_that_makes_two_tasks_of_one_name_is_an_error(self, check: Check, source: Source) -> None:
        source.load(FACTORY)
        assert ids(check(HERE)) == ["E011"]

    def test_a_module_that_is_imported_again_has_no_duplicates(self, check: Check, source: Source) -> None:
        source.load(ONE)
        source.load("\n" + ONE)
        assert check(HERE) == []

    def test_a_duplicate_task_name_is_no_error_after_its_correction(self, check: Check, source: Source) -> None:
        source.load(TWO)
        source.load(ONE)
        assert check(HERE) == []
        source.load(TWO)
        assert ids(check(HERE)) == ["E011"]

    def test_a_duplicate_task_name_in_two_modules_is_an_error_if_the_import_s_exception_was_caught(
        self, check: Check, source: Source
    ) -> None:
        source.load(ONE)
        with pytest.raises(TaskUsageError, match=r"shop_tasks\.work and .*other; give one of them another name"):

            @task(name="shop_tasks.work")
            def other() -> None: ...

        (message,) = check(HERE)
        assert ids([message]) == ["E011"]
        assert "shop_tasks.py:3) and " in message.msg
        assert __file__ in message.msg

    def test_a_copy_with_other_options_is_not_a_duplicate(self, check: Check, source: Source) -> None:
        source.load(ONE).work.using(delay=5)
        assert check(HERE) == []

    def test_a_function_that_is_declared_twice_is_not_a_duplicate(self, check: Check, source: Source) -> None:
        source.load(
            "from django_fairque import task\n\ndef work(): ...\n\none, two = task(work), task(timeout=5)(work)\n"
        )
        assert check(HERE) == []

    def test_a_third_function_does_not_hide_the_second_duplicate(self, check: Check, source: Source) -> None:
        source.load(TWO + "\ntask(timeout=5)(work.function)\n")
        assert ids(check(HERE)) == ["E011"]

    def test_duplicate_task_names_are_reported_with_configuration_mistakes(self, check: Check, source: Source) -> None:
        source.load(TWO)
        assert ids(check({**HERE, "QUEU": {}})) == ["E001", "E011"]


class TestQueues:
    SOURCE = ONE.replace("@task", '@task(queue="mial")')

    def test_a_task_for_a_queue_that_is_not_declared_is_reported(self, check: Check, source: Source) -> None:
        source.load(self.SOURCE)
        (message,) = check({**HERE, "QUEUES": {"default": {}, "mail": {}}})
        assert ids([message]) == ["E016"]
        assert message.msg == (
            "the task 'shop_tasks.work' can't be enqueued: queue 'mial' is not declared in QUEUES: expected one of "
            "'default', 'mail'; did you mean 'mail'?"
        )

    def test_a_task_for_a_declared_queue_passes_the_checks(self, check: Check, source: Source) -> None:
        source.load(self.SOURCE)
        assert check({**HERE, "QUEUES": {"default": {}, "mial": {}}}) == []

    def test_queues_of_tasks_are_not_checked_with_a_wrong_configuration(self, check: Check, source: Source) -> None:
        source.load(self.SOURCE)
        assert ids(check({**HERE, "QUEU": {}})) == ["E001"]


class TestSchedules:
    def schedule(self, **keys: object) -> dict[str, object]:
        return {**HERE, "SCHEDULES": {"nightly": {"TASK": "shop_tasks.work", "EVERY": 60, **keys}}}

    @pytest.mark.parametrize("keys", [{"TASK": "shop_tasks.wrok"}, {"ARGS": ["acme"]}])
    def test_schedules_of_wrong_calls_are_errors(self, check: Check, source: Source, keys: dict[str, object]) -> None:
        source.load(ONE)
        (message,) = check(self.schedule(**keys))
        assert ids([message]) == ["E010"]
        assert "'nightly'" in message.msg

    def test_a_schedule_with_a_valid_call_passes_the_checks(self, check: Check, source: Source) -> None:
        source.load(ONE)
        assert check(self.schedule()) == []


@pytest.mark.parametrize(
    ("atomic", "on_commit", "found"), [(True, False, ["W007"]), (True, True, []), (False, False, [])]
)
def test_sending_tasks_before_the_commit_of_requests_is_a_warning(
    check: Check, settings: Settings, monkeypatch: pytest.MonkeyPatch, atomic: bool, on_commit: bool, found: list[str]
) -> None:
    monkeypatch.setitem(settings.DATABASES["default"], "ATOMIC_REQUESTS", atomic)
    assert ids(check({**HERE, "ENQUEUE_ON_COMMIT": on_commit})) == found


class TestLimits:
    @pytest.mark.parametrize("others", ['Concurrency("a:{y}", 2)', 'Rate("a:{y}", "1/s"), Concurrency("a:{y}", 2)'])
    def test_two_tasks_with_different_values_for_a_limit_key_are_an_error(
        self, check: Check, source: Source, others: str
    ) -> None:
        source.load(
            f"{LIMITS}@task(limits=[Concurrency('a:{{x}}', 1)])\ndef one(x): ...\n\n@task(limits=[{others}])\ndef two(y): ...\n"
        )
        (message,) = check(HERE)
        assert ids([message]) == ["E021"]
        assert message.msg == (
            "the tasks 'shop_tasks.one' and 'shop_tasks.two' give the limit 'a:{y}' different values"
        )

    def test_equal_values_for_a_limit_key_are_no_error(self, check: Check, source: Source) -> None:
        one = "@task(limits=[Concurrency('a', 1), Rate('a', '60/m'), Concurrency('a', 3, scope='user')])\ndef one(): ...\n"
        two = "@task(limits=[Concurrency('a', 1, at_limit='skip'), Rate('a', '1/s'), Concurrency('b', 2)])\ndef two(): ...\n"
        source.load(LIMITS + one + two)
        assert check(HERE) == []

    def test_a_shared_limit_smaller_than_the_number_of_shards_is_an_error(self, check: Check, source: Source) -> None:
        limits = "Concurrency('a', 3), Concurrency('b', 4), Concurrency('{user}', 1), Rate('c', '1/h')"
        source.load(f"{LIMITS}@task(limits=[{limits}])\ndef one(): ...\n")
        (message,) = check({**HERE, "QUEUE": {"SHARDS": 4}})
        assert ids([message]) == ["E021"]
        assert "task 'shop_tasks.one' can't be enqueued: limit 'a' lets 3 tasks run at once" in message.msg
