"""The helpers for other projects' tests, used as those use them: without a worker, without a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction
from django.test import TestCase

from django_fairque import (
    ConfigurationError,
    Discard,
    Priority,
    RedisConnectionError,
    Retry,
    TaskState,
    current_task,
    get_queue,
    group,
    task,
)
from django_fairque.testing import FairqueTestMixin, assert_enqueued, assert_fair, capture_tasks, eager

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_django import Settings
    from redis import Redis

    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.testing import Capture
    from tests.servers import Server


pytestmark = pytest.mark.usefixtures("nobody_answers")


@pytest.fixture
def queue(server: Server, redis: Redis, settings: Settings) -> FairQueue:
    settings.FAIRQUE = {"REDIS": {"URL": server.url}}
    return get_queue()


@pytest.fixture
def greet() -> Any:
    @task(name="greet", user="user", priority=Priority.HIGH)
    def greet(user: str, *names: str, loud: bool = False) -> str:
        current_task().progress(1, 2, "half")
        text = f"hello {', '.join(names)}"
        return text.upper() if loud else text

    return greet


def test_an_enqueued_task_is_captured_with_its_arguments_and_options(fairque: Capture, greet: Any) -> None:
    result = greet.enqueue("acme", "a", "b", loud=True)
    (captured,) = fairque
    assert (captured.name, captured.args, captured.kwargs) == ("greet", ["acme", "a", "b"], {"loud": True})
    assert (captured.user_id, captured.priority, captured.queue) == ("acme", Priority.HIGH, "default")
    assert result.state is TaskState.QUEUED
    assert fairque.run() == 1
    assert (result.state, result.result()) == (TaskState.FINISHED, "HELLO A, B")
    assert captured.progress == (1, 2, "half")


def test_no_server_has_to_be_named(settings: Settings, greet: Any) -> None:
    # In development the embedded server is the default, so settings need not name one.
    settings.FAIRQUE = {"QUEUE": {"REQUEST_TIMEOUT": 0.1}, "QUEUES": {"mail": {}}}
    with pytest.raises(ConfigurationError, match="no server is named"):
        greet.enqueue("acme", "a")
    with capture_tasks() as capture:
        greet.using(queue="mail").enqueue("acme", "a")
        with eager():
            assert greet.enqueue("acme", "b").result() == "hello b"
        assert capture.run() == 1
        with pytest.raises(RedisConnectionError, match="tests-use-no-server-of-the-settings"):
            get_queue().get_stats()
    with pytest.raises(ConfigurationError, match="no server is named"):
        get_queue()


def test_a_server_that_is_named_is_kept(queue: FairQueue) -> None:
    with capture_tasks():
        assert get_queue() is queue
    assert get_queue() is queue


async def test_a_task_enqueued_by_a_coroutine_is_captured(fairque: Capture, greet: Any) -> None:
    result = await greet.aenqueue("acme", "a")
    assert len(fairque) == 1
    assert await result.astate() is TaskState.QUEUED


def test_assert_enqueued_filters_captured_tasks(fairque: Capture, greet: Any) -> None:
    for n in range(2):
        greet.using(queue="mail").enqueue("acme", str(n))
    assert len(assert_enqueued(greet)) == 2
    assert_enqueued("greet", args=("acme", "1"), user_id="acme", queue="mail", priority=Priority.HIGH, count=1)
    with pytest.raises(AssertionError) as caught:
        assert_enqueued(greet, args=["bolt"], count=1)
    assert str(caught.value).splitlines()[:3] == [
        "expected greet to be enqueued 1 times with args=['bolt'], found 0",
        "enqueued were:",
        "  <greet('acme', '0') for 'acme', HIGH, queue mail>",
    ]


def test_asserting_without_a_capture_says_what_to_do(greet: Any) -> None:
    with pytest.raises(AssertionError, match=r"use capture_tasks\(\)"):
        assert_enqueued(greet)


def test_running_captured_tasks_runs_their_children_too(fairque: Capture, fairque_run: Callable[..., int]) -> None:
    @task(name="count_down")
    def count_down(n: int) -> None:
        if n:
            count_down.enqueue(n - 1)

    count_down.enqueue(3)
    assert fairque_run() == 4
    assert [entry.args for entry in fairque.of(count_down)] == [[3], [2], [1], [0]]


def test_tasks_that_enqueue_themselves_endlessly_fail(fairque: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_fairque.testing.capture.MAX_RUN_TASKS", 20)

    @task(name="again")
    def again() -> None:
        again.enqueue()

    again.enqueue()
    with pytest.raises(RuntimeError, match="do they enqueue each other"):
        fairque.run()


def test_running_captured_tasks_raises_or_records_errors(fairque: Capture) -> None:
    @task(name="bad")
    def bad() -> None:
        raise ValueError("no")

    first, second = bad.enqueue(), bad.enqueue()
    with pytest.raises(ValueError, match="no"):
        fairque.run()
    assert fairque.run(raise_errors=False) == 1
    assert first.state is second.state is TaskState.FAILED
    assert isinstance(fairque[1].error, ValueError)


@pytest.mark.parametrize(("error", "state"), [(Retry(5), TaskState.SCHEDULED), (Discard("x"), TaskState.CANCELED)])
def test_captured_tasks_can_retry_or_discard_themselves(fairque: Capture, error: Exception, state: TaskState) -> None:
    @task(name="unsure")
    def unsure() -> None:
        raise error

    result = unsure.enqueue()
    fairque.run()
    assert result.state is state


def test_a_captured_pipeline_passes_values_between_its_steps(fairque: Capture) -> None:
    @task(name="part")
    def part(n: int) -> int:
        current_task().xcom.push(str(n), n * 10)
        return n

    @task(name="total")
    def total() -> list[int]:
        values = current_task().xcom
        return [sum(current_task().parent_results().values()), sum(values.pull(key) for key in values.keys())]  # noqa: SIM118

    last = total.s()
    run = (group(part.s(n) for n in range(4)) >> last).enqueue()
    assert len(fairque) == 5
    assert fairque.run() == 5
    assert run[last].result() == [6, 60]


async def test_captured_coroutines_and_batches_can_be_run(fairque: Capture) -> None:
    @task(name="awaited")
    async def awaited() -> int:
        return 1

    @task(name="batch", batch=10)
    def batch(items: list[int]) -> list[int]:
        return [item + 1 for item in items]

    results = [await awaited.aenqueue(), await batch.aenqueue(4)]
    from asgiref.sync import sync_to_async

    await sync_to_async(fairque.run)()
    assert [await result.aresult() for result in results] == [1, 5]


def test_unique_tasks_are_captured_once(fairque: Capture, greet: Any) -> None:
    ids = {greet.using(unique_for=60).enqueue("acme", "a").id for _ in range(3)}
    ids |= {greet.using(task_id="chosen").enqueue("acme", "b").id for _ in range(2)}
    assert len(ids) == len(fairque) == 2


def test_a_canceled_task_is_not_captured(fairque: Capture, greet: Any) -> None:
    assert greet.enqueue("acme").cancel()
    assert len(fairque) == 0


def test_an_eager_task_runs_where_it_is_enqueued() -> None:
    seen = []

    @task(name="see")
    def see(n: int) -> int:
        seen.append(n)
        return n

    with eager() as capture:
        assert see.enqueue(1).result() == 1
        see.enqueue(2)
    assert seen == [1, 2]
    assert len(capture) == 2


def test_an_eager_task_raises_its_own_error_where_it_is_enqueued() -> None:
    ran = []

    @task(name="fail")
    def fail() -> None:
        raise ZeroDivisionError("its own")

    @task(name="after")
    def after() -> None:
        ran.append("after")

    with eager() as capture:
        for enqueue in (fail.enqueue, (fail >> after).enqueue, async_to_sync(fail.aenqueue)):
            with pytest.raises(ZeroDivisionError, match="its own"):
                enqueue()
        assert [entry.state for entry in capture.of("fail")] == [TaskState.FAILED] * 3
    assert ran == []


@pytest.mark.parametrize(("error", "state"), [(Retry(5), TaskState.SCHEDULED), (Discard("x"), TaskState.CANCELED)])
def test_an_eager_retry_or_discard_raises_no_error(error: Exception, state: TaskState) -> None:
    @task(name="instruct")
    def instruct() -> None:
        raise error

    with eager():
        assert instruct.enqueue().state is state


class TestTransactions(FairqueTestMixin, TestCase):
    """Inside a `TestCase`, whose transaction never commits."""

    def setUp(self) -> None:
        super().setUp()

        @task(name="noted")
        def noted(n: int) -> None: ...

        self.noted: Any = noted

    def test_tasks_enqueued_in_a_transaction_are_captured(self) -> None:
        with transaction.atomic():
            self.noted.enqueue(1)
        self.noted.enqueue(2)
        self.assertEnqueued(self.noted, count=2)
        assert self.runTasks() == 2

    def test_tasks_that_are_rolled_back_are_not_captured(self) -> None:
        try:
            with transaction.atomic():
                self.noted.enqueue(1)
                raise ValueError  # noqa: TRY301
        except ValueError:
            self.noted.using(on_commit=False).enqueue(2)
        assert [entry.args for entry in self.tasks] == [[2]]

    def test_assert_nothing_enqueued_fails_after_an_enqueue(self) -> None:
        self.assertNothingEnqueued()
        self.noted.enqueue(1)
        with pytest.raises(AssertionError, match="expected nothing to be enqueued, found"):
            self.assertNothingEnqueued()


class TestFairness:
    def test_assert_fair_accepts_round_robin(self) -> None:
        assert_fair("abcabcabc")
        assert_fair("abababaaaa")  # b has nothing more to come
        assert_fair("aabaabaab", weights={"a": 2})

    @pytest.mark.parametrize("order", ["aaabbb", "abaaabb"])
    def test_assert_fair_refuses_other_orders(self, order: str) -> None:
        with pytest.raises(AssertionError, match="although both had more to come"):
            assert_fair(order)


def test_captures_can_be_nested(greet: Any) -> None:
    with capture_tasks() as outer:
        greet.enqueue("a")
        with capture_tasks() as inner:
            greet.enqueue("b")
        greet.enqueue("c")
    assert ([entry.user_id for entry in outer], [entry.user_id for entry in inner]) == (["a", "b", "c"], ["b"])
