"""Enqueueing: what arrives, whose it is, when it is sent, and what is refused."""

from __future__ import annotations

import sys
from collections import Counter
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from django.db import transaction

from django_fairque import (
    BacklogFullError,
    ConfigurationError,
    Priority,
    RedisConnectionError,
    TaskSerializationError,
    TaskState,
    TaskUsageError,
    TaskValidationError,
    current_task,
    task,
)
from django_fairque.conf import aclose_queues, aget_queue, get_queue
from django_fairque.testing import eager
from tests.fixture_types import FairQueue, Redis, Settings
from tests.leases import pop

INFINITY = float("inf")


def declare(**options: Any) -> Any:
    @task(name="work", **options)
    def work(customer: str, n: int = 0) -> None: ...

    return work


def test_a_call_arrives_byte_for_byte(queue: FairQueue) -> None:
    sent = declare(user="customer").enqueue("acme", n=3)
    lease = pop(queue)
    assert (lease.task_id, lease.user_id, lease.name) == (sent.id, "acme", "work")
    assert lease.payload_bytes == b'{"args":["acme"],"kwargs":{"n":3}}'


def test_the_user_is_an_argument_or_computed_from_arguments_or_given(queue: FairQueue) -> None:
    users = [
        declare().enqueue("acme"),
        declare(user="n").enqueue("acme", 5),
        declare(user="n").enqueue("acme"),
        declare(user=lambda customer, n=0: customer[:2]).enqueue("acme"),
        declare(user=lambda customer, n=0: None).enqueue("acme"),
        declare(user="customer").using(user_id="other").enqueue("acme"),
    ]
    found = [queue.get_task(result.id).user_id for result in users]
    assert found == ["default", "5", "0", "ac", "default", "other"]


def test_options_of_one_call_reach_the_queue(queue: FairQueue) -> None:
    result = declare().using(priority=Priority.CRITICAL, delay=60, max_retries=1, timeout=5, task_id="x").enqueue("a")
    sent = queue.get_task(result.id)
    assert (sent.task_id, sent.priority, sent.max_retries, sent.timeout) == ("x", Priority.CRITICAL, 1, 5.0)
    assert sent.state is TaskState.SCHEDULED


def test_many_calls_keep_their_order(queue: FairQueue) -> None:
    results = declare(user="customer").enqueue_many([(("acme", n), {}) for n in range(1000)])
    assert [lease.task_id for lease in queue.pop_batch(1000, "w")] == [result.id for result in results]


@pytest.mark.parametrize("over", [timedelta(seconds=60), 60])
def test_many_calls_are_spread_over_a_length_of_time(queue: FairQueue, over: float | timedelta) -> None:
    work = declare(user="customer")
    results = work.enqueue_many([(("acme", n), {}) for n in range(4)], over=over)
    found = queue.get_tasks([result.id for result in results])
    tasks = [found[result.id] for result in results]
    assert [task.delay for task in tasks] == [None, 15, 30, 45]
    assert [task.state.value for task in tasks] == ["queued", *["scheduled"] * 3]
    assert [round((task.execute_after or 0) - task.created_at, 3) for task in tasks[1:]] == [15, 30, 45]
    assert queue.get_task(work.enqueue("acme", 5).id).delay is None
    assert work.enqueue_many([], over=over) == []


@pytest.mark.parametrize(
    ("over", "options", "words"),
    [
        (0, {}, r"enqueue_many\(\): over must be more than 0 seconds"),
        (-1, {}, "over must be a number of seconds from 0"),
        ("1h", {}, "over must be a number of seconds"),
        (timedelta(days=5000), {}, "over must be a number of seconds from 0 to"),
        (60, {"delay": 5}, "over and delay both say when the tasks start"),
        (60, {"execute_after": 4e9}, "over and execute_after both"),
        (60, {"debounce": 5}, "over and debounce both"),
        (60, {"expires_at": timedelta(seconds=20)}, "would expire .20 s from now. before it may start .30 s"),
    ],
)
def test_calls_that_can_not_be_spread_are_refused(
    queue: FairQueue, redis: Redis, over: Any, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(TaskUsageError, match=words):
        declare().using(**options).enqueue_many([(("a",), {}), (("b",), {})], over=over)
    assert redis.dbsize() == 0


def test_a_unique_call_returns_the_existing_task(queue: FairQueue) -> None:
    work = declare(user="customer", unique_for=60)
    first = work.enqueue("acme", 1)
    assert work.enqueue("acme", n=1).id == first.id
    assert work.enqueue("acme", 0).id == work.enqueue("acme").id
    assert work.enqueue("acme", 2).id != first.id
    assert work.using(unique_for=None).enqueue("acme", 1).id != first.id
    assert work.using(user_id="other").enqueue("acme", 1).id != first.id


def test_debounced_calls_are_one_task(queue: FairQueue) -> None:
    work = declare(user="customer", debounce=60)
    assert work.enqueue("acme", 1).id == work.enqueue("acme", 1).id
    assert queue.get_queue_sizes("acme").scheduled == 1


async def test_coroutines_enqueue_and_cancel(queue: FairQueue) -> None:
    work = declare(user="customer")
    result = await work.aenqueue("acme", 1)
    many = await work.aenqueue_many([(("acme", n), {}) for n in range(3)], over=60)
    assert await many[2].astate() is TaskState.SCHEDULED
    assert await result.astate() is TaskState.QUEUED
    assert len({result.id, *(one.id for one in many)}) == 4
    assert await result.acancel() is True
    assert await (await result.arefresh()).astate() is TaskState.CANCELED
    await aclose_queues()


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        ((), {}, "missing a required argument: 'customer'"),
        (("a", INFINITY), {}, "not JSON"),
        (("a", {1: 2}), {}, "strings"),
        (("a", object()), {}, "not JSON"),
        (("a", "\ud800"), {}, "not JSON"),
        (("x" * 257,), {}, "at most 256 bytes"),
        (("",), {}, "non-empty"),
        ((None,), {}, "text, an integer or a UUID"),
        (("a", "x" * 300_000), {}, "the limit is 262,144"),
    ],
)
def test_a_call_that_can_not_work_is_refused_where_it_is_made(
    queue: FairQueue, redis: Redis, args: tuple[Any, ...], kwargs: dict[str, Any], expected: str
) -> None:
    with pytest.raises(TaskValidationError, match=expected):
        declare(user="customer").enqueue(*args, **kwargs)
    assert redis.dbsize() == 0


def test_one_invalid_call_of_many_sends_none(queue: FairQueue, redis: Redis) -> None:
    with pytest.raises(TaskUsageError):
        declare(user="customer").enqueue_many([(("a",), {}), ((), {})])
    with pytest.raises(TaskUsageError, match="2 tasks can't share one task_id"):
        declare().using(task_id="x").enqueue_many([(("a",), {}), (("b",), {})])
    assert declare().enqueue_many(iter([])) == []
    assert redis.dbsize() == 0


def test_a_full_backlog_is_an_error(queue: FairQueue) -> None:
    queue.user("acme").set_max_backlog(1)
    work = declare(user="customer")
    work.enqueue("acme")
    with pytest.raises(BacklogFullError):
        work.enqueue("acme")


@pytest.mark.parametrize(
    "call", [("a", 1), "ab", {"a": 1}, ((), {}, 1), (("a",),), ("a", {}), (("a",), []), 5, None, (3, {})]
)
def test_enqueue_many_refuses_calls_that_are_no_pairs_of_arguments(queue: FairQueue, redis: Redis, call: Any) -> None:
    with pytest.raises(TaskUsageError, match="pairs of a sequence and a mapping"):
        declare().enqueue_many([(("a",), {}), call])
    assert redis.dbsize() == 0


def test_a_wrong_call_is_a_type_error_and_a_wrong_value_a_value_error(queue: FairQueue) -> None:
    with pytest.raises(TypeError, match=r"work\.enqueue\(\): missing .*'customer'; its arguments are \(customer"):
        declare().enqueue()
    with pytest.raises(ValueError, match=r"work\.enqueue\(\): argument 'customer' is not JSON"):
        declare().enqueue({1, 2})
    with pytest.raises(TaskSerializationError):
        declare().enqueue({1, 2})


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"prioritty": 3}, "did you mean 'priority'"),
        ({"retry_on": OSError}, r"write @task\(retry_on=…\)"),
        ({"user_id": None}, "text, an integer or a UUID, got NoneType"),
        ({"user_id": True}, "got bool True"),
        ({"user_id": 1.5}, "got float 1.5"),
        ({"user_id": ""}, "non-empty"),
        ({"task_id": "x" * 257}, "at most 256 bytes"),
        ({"task_id": 5}, "got int 5"),
        ({"delay": -1}, "got -1"),
        ({"delay": "5"}, "got '5'"),
        ({"delay": float("nan")}, "got nan"),
        ({"delay": 5, "execute_after": 9e9}, "in two ways"),
        ({"execute_after": datetime(2030, 1, 1)}, "aware datetime"),  # noqa: DTZ001 - that it is naive is the point
        ({"expires_at": "tomorrow"}, "got 'tomorrow'"),
        ({"unique_for": 5, "debounce": 5}, "give one"),
        ({"debounce": 5, "delay": 5}, "a delay itself"),
        ({"on_commit": 1}, "True, False or None"),
        ({"database": ""}, "non-empty"),
        ({"queue": None}, "non-empty"),
        ({"max_retries": 1001}, "from 0 to 1000"),
        ({"max_retries": -1}, "from 0 to 1000"),
        ({"max_retries": True}, "from 0 to 1000"),
        ({"sla": 0}, "more than 0"),
    ],
)
def test_a_wrong_option_of_a_call_is_named(queue: FairQueue, options: dict[str, Any], expected: str) -> None:
    with pytest.raises(TaskUsageError, match=rf"work\.using\(\): .*{expected}"):
        declare().using(**options)


def test_a_naive_moment_is_in_the_time_zone_of_a_project_without_time_zones(
    queue: FairQueue, settings: Settings
) -> None:
    settings.USE_TZ, settings.TIME_ZONE = False, "Europe/Berlin"
    naive, due = datetime(2100, 1, 1), datetime(2099, 12, 31, 23, tzinfo=timezone.utc).timestamp()  # noqa: DTZ001
    task = queue.get_task(declare().using(execute_after=naive, expires_at=naive + timedelta(1)).enqueue("a").id)
    assert (task.execute_after, task.expires_at) == (due, due + 86400)


def test_a_later_option_for_the_start_or_expiry_replaces_an_earlier_one(queue: FairQueue) -> None:
    work = declare(delay=60, expires=120)
    assert queue.get_task(work.enqueue("a").id).state is TaskState.SCHEDULED
    moved = work.using(execute_after=4e9, expires_at=4.1e9)
    due = queue.get_task(moved.enqueue("a").id)
    assert (due.execute_after, due.expires_at) == (4e9, 4.1e9)
    assert queue.get_task(work.using(delay=None).enqueue("a").id).state is TaskState.QUEUED


def test_a_length_of_time_counts_from_the_call(queue: FairQueue) -> None:
    later = declare().using(execute_after=timedelta(hours=1), expires_at=timedelta(hours=2))
    sent = queue.get_task(later.enqueue("a").id)
    assert sent.execute_after is not None
    assert sent.expires_at == pytest.approx(sent.execute_after + 3600, abs=1)
    with pytest.raises(TaskUsageError, match=r"would expire .* before it may start"):
        later.using(expires_at=timedelta(minutes=1)).enqueue("a")


def test_an_undeclared_queue_is_a_mistake_with_the_nearest_match(queue: FairQueue) -> None:
    with pytest.raises(ConfigurationError, match="did you mean 'default'"):
        declare(queue="defualt").enqueue("a")


class TestRetriesAboveTheQueuesLimit:
    """More retries than the limit are reduced to the limit, with one warning for each task name."""

    @pytest.fixture
    def queue(self, queue: FairQueue, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> FairQueue:
        monkeypatch.setattr("django_fairque.engine.pushing.push._names_with_capped_retries", set())
        settings.FAIRQUE = {**settings.FAIRQUE, "QUEUE": {"MAX_RETRY_ATTEMPTS": 3}}
        return get_queue()

    def test_retries_are_capped_in_every_call(self, queue: FairQueue, caplog: pytest.LogCaptureFixture) -> None:
        work = declare(max_retries=5)
        sent = [
            work.enqueue("a").id,
            *(result.id for result in work.enqueue_many([(("a", n), {}) for n in (1, 2)])),
            *(result.id for result in (work.s("a") >> work.s("b")).enqueue().results),
        ]
        queue.schedules.add("nightly", task=work.s("a"), every=60)
        sent.append(queue.schedules.run_now("nightly"))
        assert [queue.get_task(task_id).max_retries for task_id in sent] == [3] * 6
        (line,) = (line for line in caplog.messages if "max_retry_attempts" in line)
        assert "'work' of queue default have max_retries 5, which is reduced to the queue's limit" in line

    async def test_retries_are_capped_in_coroutines(self, queue: FairQueue) -> None:
        result = await declare(max_retries=5).aenqueue("a")
        assert (await (await aget_queue()).get_task(result.id)).max_retries == 3
        await aclose_queues()

    @pytest.mark.django_db(transaction=True)
    @pytest.mark.parametrize("outbox", [False, True])
    def test_retries_are_capped_at_a_commit(self, queue: FairQueue, settings: Settings, outbox: bool) -> None:
        settings.FAIRQUE = {**settings.FAIRQUE, "OUTBOX": outbox}
        with transaction.atomic():
            result = declare(max_retries=5).enqueue("a")
        assert queue.get_task(result.id).max_retries == 3

    def test_tests_run_a_task_as_often_as_a_worker_would(self, queue: FairQueue) -> None:
        attempts = []

        @task(name="fails", max_retries=5)
        def fails() -> None:
            attempts.append(current_task().retries_left)
            raise OSError("no")

        with pytest.raises(OSError, match="no"), eager(retries=True):
            fails.enqueue()
        assert attempts == [3, 2, 1, 0]


def test_a_server_that_is_gone_is_an_error_at_once(settings: Settings) -> None:
    settings.FAIRQUE = {"REDIS": {"URL": "unix:///nonexistent/s.sock"}, "QUEUE": {"REQUEST_TIMEOUT": 0}}
    with pytest.raises(RedisConnectionError):
        declare().enqueue("a")


def test_a_default_that_is_not_json_does_not_matter_for_uniqueness(queue: FairQueue) -> None:
    def enqueue() -> str:
        nothing = object()

        @task(name="with_default", unique_for=60)
        def work(n: int, other: object = nothing) -> None: ...

        return work.enqueue(1).id

    assert enqueue() == enqueue()


def test_items_of_a_batch_task_are_enqueued_one_by_one(queue: FairQueue) -> None:
    @task(name="batch", batch=3, user=lambda item: item["owner"], unique_for=60)
    def work(items: list[dict[str, str]]) -> int:
        return len(items)

    sent = work.enqueue({"owner": "acme"})
    assert work.enqueue({"owner": "acme"}).id == sent.id
    assert queue.get_task(sent.id).user_id == "acme"
    assert work([{"owner": "a"}, {"owner": "b"}]) == 2
    with pytest.raises(TaskUsageError, match="one item of the batch, by position, got 2 and 0 by name"):
        work.enqueue({"owner": "a"}, {"owner": "b"})  # type: ignore[call-overload]


def test_each_of_many_calls_has_its_own_user_arguments_and_moments(queue: FairQueue) -> None:
    """From the second call on, what the options decide is copied."""
    work = declare(user="customer", priority=4, timeout=5)
    sent = [work.enqueue(f"user{number}", n=number) for number in range(4)]
    tasks = [queue.get_task(result.id) for result in sent]
    assert [(task.user_id, task.payload["kwargs"]) for task in tasks] == [(f"user{n}", {"n": n}) for n in range(4)]
    assert len({task.task_id for task in tasks}) == 4
    assert {(task.priority, task.timeout, task.name) for task in tasks} == {(4, 5.0, "work")}
    for _ in range(3):
        with pytest.raises(TaskValidationError, match=r"work\.enqueue\(\): the user \(argument 'customer'\)"):
            work.enqueue("x" * 257)
        with pytest.raises(TaskSerializationError, match="argument 'n'"):
            work.enqueue("acme", n={1})
    delayed = declare(delay=60)
    assert {delayed.build(("acme",), {}).delay for _ in range(4)} == {60}


def test_a_new_configuration_counts_for_the_next_call(queue: FairQueue, settings: Settings) -> None:
    work = declare()
    assert {work.build(("acme",), {}).max_retries for _ in range(3)} == {3}
    settings.FAIRQUE = {**settings.FAIRQUE, "QUEUE": {"DEFAULT_MAX_RETRIES": 1}}
    assert {work.build(("acme",), {}).max_retries for _ in range(3)} == {1}


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, "missing a required argument: 'customer'"),
        (("a", 1, 2), {}, "too many positional arguments"),
        (("a",), {"customer": "b"}, "multiple values for argument 'customer'"),
        (("a",), {"color": "red"}, "unexpected keyword argument 'color'"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_at_every_call(args: Any, kwargs: Any, message: str) -> None:
    work = declare()
    for _ in range(3):
        with pytest.raises(TaskUsageError, match=message):
            work.bind(args, kwargs)
    assert work.bind(("a",), {"n": 2}) == {"customer": "a", "n": 2}
    assert work.bind((), {"n": 2, "customer": "a"}) == {"customer": "a", "n": 2}


def test_a_parameter_that_is_given_by_name_only_and_has_no_default_must_be_given() -> None:
    @task(name="named")
    def named(first: int, second: int = 2, *, third: int) -> None: ...

    assert named.bind((1,), {"third": 3}) == {"first": 1, "third": 3}
    for args in ((1,), (1, 2)):
        with pytest.raises(TaskUsageError, match="missing a required"):
            named.bind(args, {})


def test_an_enqueue_calls_few_functions_of_the_package_and_none_of_pydantic(queue: FairQueue) -> None:
    """A function of Python takes 0.3 to 1 µs. Pydantic's ``__getattr__`` takes 4 µs for a private attribute."""

    @task(name="greet", user="user")
    def greet(user: str, text: str) -> None: ...

    for _ in range(3):  # the first calls load functions, and make a pattern of the task
        greet.enqueue("ann", "hello")
    calls: Counter[str] = Counter()

    def count(frame: Any, event: str, _: Any) -> None:
        if event == "call":
            calls[frame.f_globals.get("__name__", "").partition(".")[0]] += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        greet.enqueue("ann", "hello")
    finally:
        sys.setprofile(before)
    assert 0 < calls["django_fairque"] <= 100
    assert calls["pydantic"] == 0
