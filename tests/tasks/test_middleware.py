"""Middleware: around sending and around running, in order, with errors; and the headers that travel with a task."""

from __future__ import annotations

import asyncio
import functools
import json
import threading
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connections, transaction
from django.utils import translation

from django_fairque import (
    AsyncWorker,
    Discard,
    Priority,
    Retry,
    TaskMiddleware,
    TaskRun,
    TaskSend,
    TaskSerializationError,
    TaskUsageError,
    Worker,
    current_task,
    get_queue,
    task,
)
from django_fairque.conf import aclose_queues
from django_fairque.engine.model.errors import ConfigurationError
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.model.task import Task
from django_fairque.models import OutboxEntry
from django_fairque.tasks.execution import Services, run_batch
from django_fairque.tasks.middleware import MAX_HEADERS_BYTES
from django_fairque.testing import capture_tasks, eager
from tests.fixture_types import FairQueue, Redis, Server, Settings

from .helpers import awaited, noop, raising, runs_of

HERE = "tests.tasks.test_middleware"
events: list[Any] = []


@pytest.fixture(autouse=True)
def no_events() -> None:
    events.clear()


@pytest.fixture
def use(server: Server, redis: Redis, settings: Settings) -> Callable[..., None]:
    """Make these classes of this module the middleware of the setting."""

    def use(*names: str, **options: Any) -> None:
        middleware = [f"{HERE}.{name}" for name in names]
        settings.FAIRQUE = {"REDIS": {"URL": server.url}, "MIDDLEWARE": middleware, **options}

    return use


def work() -> None:
    Worker(burst=True, concurrency=1).run()


async def awork() -> None:
    await AsyncWorker(burst=True, concurrency=1).run()
    await aclose_queues()


class Recording(TaskMiddleware):
    name = "A"

    @contextmanager
    def around_send(self, send: TaskSend) -> Iterator[None]:
        events.append(f"{self.name} sends {len(send.tasks)}")
        yield
        events.append(f"{self.name} has sent")

    @contextmanager
    def around_run(self, run: TaskRun) -> Iterator[None]:
        events.append(f"{self.name} runs")
        try:
            yield
        except BaseException as error:
            events.append(f"{self.name} sees {type(error).__name__}")
            raise
        events.append(f"{self.name} has run")


class B(Recording):
    name = "B"


class C(Recording):
    name = "C"


class D(Recording):
    name = "D"


def speak(**options: Any) -> Any:
    """Declare a task that returns its language."""

    @task(name="speak", **options)
    def speak() -> str:
        return translation.get_language()

    return speak


@pytest.fixture(params=[False, True], ids=["function", "coroutine"])
def declared_as(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Declare a function as it is, or as a coroutine."""

    def declare(function: Callable[..., Any], **options: Any) -> Any:
        @functools.wraps(function)
        async def run(*args: Any) -> Any:
            return function(*args)

        declared: Any = task(**options)
        return declared(run if request.param else function)

    return declare


def test_middleware_of_the_setting_is_entered_before_that_of_the_task(use: Callable[..., None]) -> None:
    use("Recording", "B")

    @task(name="ordered", middleware=[C, f"{HERE}.D"])
    def ordered() -> None:
        events.append("function")

    ordered.enqueue()
    assert events == [*(f"{name} sends 1" for name in "ABCD"), *(f"{name} has sent" for name in "DCBA")]
    events.clear()
    work()
    assert events == [*(f"{name} runs" for name in "ABCD"), "function", *(f"{name} has run" for name in "DCBA")]


class Facts(TaskMiddleware):
    @contextmanager
    def around_send(self, send: TaskSend) -> Iterator[None]:
        (sent,) = send.tasks
        events.append((send.queue, sent.name, sent.user_id, sent.priority, sent.task_id))
        yield

    @contextmanager
    def around_run(self, run: TaskRun) -> Iterator[None]:
        context = run.task
        assert current_task() is context
        events.append((run.queue, run.name, run.user_id, context.priority, context.id))
        events.append((context.attempt, context.args, context.kwargs, run.is_async, run.headers))
        yield


def test_middleware_has_the_facts_of_a_task(use: Callable[..., None]) -> None:
    use("Facts")

    @task(name="facts", user="user", priority=Priority.HIGH)
    def facts(user: str, more: Any = None) -> None: ...

    result = facts.enqueue("ann", more=[1])
    work()
    known = ("default", "facts", "ann", Priority.HIGH, result.id)
    assert events == [known, known, (1, ["ann"], {"more": [1]}, False, {})]
    context = current_task()
    assert (context.priority, context.args, context.kwargs, context.headers) == (Priority.NORMAL, [], {}, {})


class Language(TaskMiddleware):
    """The example of the documentation."""

    @contextmanager
    def around_send(self, send: TaskSend) -> Iterator[None]:
        send.headers["language"] = translation.get_language()
        yield

    @contextmanager
    def around_run(self, run: TaskRun) -> Iterator[None]:
        with translation.override(run.headers.get("language")):
            yield


def test_headers_travel_with_a_task(use: Callable[..., None]) -> None:
    use("Language")

    @task(name="aspeak")
    async def aspeak() -> str:
        return translation.get_language()

    spoken = speak()
    with translation.override("ja"):
        results = [
            spoken.enqueue(),
            aspeak.enqueue(),
            *(spoken | aspeak).enqueue().results,
            spoken.enqueue_many([((), {})])[0],
            awaited(aspeak.aenqueue),
        ]
    work()
    assert [result.result() for result in results] == ["ja"] * 6


def test_a_task_without_headers_is_stored_with_its_arguments_alone(use: Callable[..., None]) -> None:
    use("Recording")
    result = noop().enqueue(1)
    assert get_queue().get_task(result.id).payload_bytes == b'{"args":[1],"kwargs":{}}'


def test_changed_headers_have_a_wrong_signature(use: Callable[..., None], redis: Redis) -> None:
    use("Language")
    with translation.override("ja"):
        result = speak().enqueue()
    key = f"fq:{{default:0}}:payload:{result.id}"
    stored = redis.get(key)
    assert isinstance(stored, bytes)
    redis.set(key, stored.replace(b'{"language":"ja"}', b'{"language":"de"}'))
    work()
    assert result.state is TaskState.FAILED
    assert "signature" in result.errors[-1].error


def test_headers_that_people_have_edited_are_ignored(queue: FairQueue) -> None:
    @task(name="headers")
    def headers() -> dict[str, str]:
        return current_task().headers

    edited: list[Any] = [{"headers": {"a": "x", "b": 1}}, {"headers": [1]}, {"headers": None}, [], "x", {}]
    found = []
    for about in edited:
        made = headers.build((), {})
        queue.push(made.with_payload({"args": [], "kwargs": {}, "about": about}))
        work()
        found.append(queue.get_task(made.task_id).result)
    assert found == [{"a": "x"}, {}, {}, {}, {}, {}]


class Wrong(TaskMiddleware):
    headers: Any = None

    @contextmanager
    def around_send(self, send: TaskSend) -> Iterator[None]:
        send.headers.update(self.headers)
        yield


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"a b": "x"}, "name of a header"),
        ({"": "x"}, "name of a header"),
        ({1: "x"}, "name of a header"),
        ({"a": 1}, "must be text, got int 1"),
        ({"a": "x" * MAX_HEADERS_BYTES}, "may have 16,384 bytes, these have 16,385"),
    ],
)
def test_headers_that_are_no_short_texts_are_refused(queue: FairQueue, headers: Any, words: str) -> None:
    class Own(Wrong):
        pass

    Own.headers = headers
    with pytest.raises(TaskUsageError, match=words):
        noop(middleware=[Own()]).enqueue()
    assert not queue.tasks("queued").items


def test_headers_count_for_the_largest_payload(use: Callable[..., None]) -> None:
    use("Language", QUEUE={"MAX_PAYLOAD_BYTES": 40})
    with pytest.raises(TaskSerializationError):
        speak().enqueue()


class Failing(TaskMiddleware):
    where = ""

    @contextmanager
    def around_send(self, send: TaskSend) -> Iterator[None]:
        if self.where == "enter send":
            raise ValueError(self.where)
        yield
        if self.where == "leave send":
            raise ValueError(self.where)

    @contextmanager
    def around_run(self, run: TaskRun) -> Iterator[None]:
        if self.where == "enter run":
            raise ValueError(self.where)
        yield
        if self.where == "leave run":
            raise ValueError(self.where)


@pytest.mark.parametrize("is_async", [False, True])
def test_an_error_before_sending_is_raised_and_nothing_is_sent(
    use: Callable[..., None], monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    use("Recording", "Failing")
    unsent = noop()
    enqueue = partial(awaited, unsent.aenqueue) if is_async else unsent.enqueue
    monkeypatch.setattr(Failing, "where", "enter send")
    with pytest.raises(ValueError, match="enter send"):
        enqueue()
    assert not get_queue().tasks("queued").items
    assert events == ["A sends 1"]
    monkeypatch.setattr(Failing, "where", "leave send")
    with pytest.raises(ValueError, match="leave send"):
        enqueue()


@pytest.mark.parametrize("where", ["enter run", "leave run"])
def test_an_error_around_running_is_the_failure_of_the_task(
    use: Callable[..., None], monkeypatch: pytest.MonkeyPatch, where: str, declared_as: Callable[..., Any]
) -> None:
    use("Recording", "Failing")
    monkeypatch.setattr(Failing, "where", where)
    result = declared_as(lambda: None, name="failing", max_retries=0).enqueue()
    events.clear()
    work()
    assert result.state is TaskState.FAILED
    assert where in result.errors[-1].error
    assert events == ["A runs", "A sees ValueError"]


class Swallowing(TaskMiddleware):
    class Manager:
        def __enter__(self) -> None: ...

        def __exit__(self, *error: object) -> bool:
            return True

    def around_send(self, send: TaskSend) -> Any:
        return self.Manager()

    def around_run(self, run: TaskRun) -> Any:
        return self.Manager()


def test_middleware_can_not_swallow_an_error(use: Callable[..., None], declared_as: Callable[..., Any]) -> None:
    use("Recording", "Swallowing")

    def fail() -> None:
        raise ValueError("mine")

    result = declared_as(fail, name="swallowed", max_retries=0).enqueue()
    events.clear()
    work()
    assert result.state is TaskState.FAILED
    assert events == ["A runs", "A sees ValueError"]


@pytest.mark.parametrize(
    ("error", "state"), [(Retry(delay=60), TaskState.SCHEDULED), (Discard("not needed"), TaskState.CANCELED)]
)
def test_retry_and_discard_pass_middleware(use: Callable[..., None], error: Exception, state: TaskState) -> None:
    use("Recording")
    result = raising(error)()
    work()
    assert result.state is state
    assert events[-1] == f"A sees {type(error).__name__}"


def test_middleware_may_discard_a_task(use: Callable[..., None]) -> None:
    class Refusing(TaskMiddleware):
        @contextmanager
        def around_run(self, run: TaskRun) -> Iterator[None]:
            raise Discard("the tenant is gone")
            yield

    use()

    @task(name="refused", middleware=[Refusing])
    def refused() -> None:
        events.append("ran")

    result = refused.enqueue()
    work()
    assert (result.state, events) == (TaskState.CANCELED, [])


def test_a_traceback_begins_in_the_code_of_the_task(use: Callable[..., None]) -> None:
    use("Language")
    with eager() as tasks, pytest.raises(ValueError, match="mine"):
        raising(ValueError("mine"))()
    frames = traceback.extract_tb(tasks.of("failing")[0].error.__traceback__)  # type: ignore[union-attr]
    assert "around_function" not in str(frames)


def test_the_time_limit_includes_middleware(use: Callable[..., None]) -> None:
    class Slow(TaskMiddleware):
        @contextmanager
        def around_run(self, run: TaskRun) -> Iterator[None]:
            deadline = time.monotonic() + 10
            while time.monotonic() < deadline:
                pass
            yield

    use()
    result = noop(middleware=[Slow], timeout=0.05, max_retries=0).enqueue()
    work()
    assert "SoftTimeLimitExceeded" in result.errors[-1].error


class OfItems(TaskMiddleware):
    @contextmanager
    def around_send(self, send: TaskSend) -> Iterator[None]:
        send.headers.update(common="x", user=send.tasks[0].user_id)
        yield

    @contextmanager
    def around_run(self, run: TaskRun) -> Iterator[None]:
        events.append((run.user_id, run.headers, [(item.user_id, item.headers["user"]) for item in run.tasks]))
        yield


def test_middleware_runs_once_for_a_batch(
    queue: FairQueue, services: Services, declared_as: Callable[..., Any]
) -> None:
    def many(items: list[str]) -> None: ...

    declared = declared_as(many, name="many", batch=10, user=str, middleware=[OfItems])
    for users in (["ann", "ben", "ann"], ["ann"]):
        for user in users:
            declared.enqueue(user)
        run_batch(runs_of(queue, services))
    (of_two, headers, items), of_one = events
    assert (of_two, headers, sorted(items)) == (None, {"common": "x"}, [("ann", "ann"), ("ann", "ann"), ("ben", "ben")])
    assert of_one == ("ann", {"common": "x", "user": "ann"}, [("ann", "ann")])


variable: ContextVar[str] = ContextVar("variable", default="unset")


class Places(TaskMiddleware):
    """Sets a variable and resets it, and records the threads in which it is entered and left."""

    @contextmanager
    def around_run(self, run: TaskRun) -> Iterator[None]:
        token = variable.set("set")
        entered = threading.current_thread()
        yield
        assert threading.current_thread() is entered
        events.append((entered, variable.get()))
        variable.reset(token)


class OnLoop(Places):
    async_capable = True


class Both(Places):
    @asynccontextmanager
    async def around_arun(self, run: TaskRun) -> AsyncIterator[None]:
        variable.set("set by a coroutine")
        yield
        events.append((threading.current_thread(), variable.get()))


def declare_coroutine(kind: type[TaskMiddleware]) -> Any:
    @task(name="places", middleware=[kind])
    async def places() -> list[Any]:
        seen = variable.get()
        events.append((threading.current_thread(), await sync_to_async(threading.current_thread)()))
        variable.set("changed")
        return [seen]

    return places


@pytest.mark.parametrize(
    ("kind", "place", "seen"),
    [(Places, "synchronous code", "set"), (OnLoop, "loop", "set"), (Both, "loop", "set by a coroutine")],
)
def test_middleware_is_entered_in_the_thread_that_fits_it(
    queue: FairQueue, kind: type[TaskMiddleware], place: str, seen: str
) -> None:
    result = declare_coroutine(kind).enqueue()
    work()
    assert result.result() == [seen], result.errors
    (loop, synchronous), (entered, value) = events
    assert entered is (loop if place == "loop" else synchronous)
    assert value == "changed"


async def test_captured_coroutines_pass_middleware(queue: FairQueue) -> None:
    declared = declare_coroutine(Places)
    with capture_tasks() as tasks:
        await declared.aenqueue()
        await asyncio.to_thread(tasks.run)
    assert tasks[0].result == ["set"]


class OnlyAsync(TaskMiddleware):
    @asynccontextmanager
    async def around_arun(self, run: TaskRun) -> AsyncIterator[None]:
        events.append("entered")
        yield

    @asynccontextmanager
    async def around_asend(self, send: TaskSend) -> AsyncIterator[None]:
        events.append("sending")
        yield


async def test_middleware_for_coroutines_alone_is_refused_where_code_is_not_one(queue: FairQueue) -> None:
    @task(name="plain", middleware=[OnlyAsync], max_retries=0)
    def plain() -> None: ...

    @task(name="coroutine", middleware=[OnlyAsync])
    async def coroutine() -> None: ...

    with pytest.raises(TaskUsageError, match="OnlyAsync has around_asend only"):
        await asyncio.to_thread(plain.enqueue)
    result, other = await plain.aenqueue(), await coroutine.aenqueue()
    await awork()
    assert "OnlyAsync has around_arun only" in (await result.aerrors())[-1].error
    assert await other.astate() is TaskState.FINISHED
    assert events == ["sending", "sending", "entered"]
    await aclose_queues()


async def test_a_coroutine_that_is_canceled_while_it_enters_leaves_again(queue: FairQueue) -> None:
    entering, may_go_on = threading.Event(), threading.Event()

    class Blocking(TaskMiddleware):
        @contextmanager
        def around_run(self, run: TaskRun) -> Iterator[None]:
            entering.set()
            may_go_on.wait(10)
            events.append("entered")
            yield
            events.append("left")

    async def cancel(entered: Any) -> None:
        await asyncio.to_thread(entering.wait)
        entered.cancel()
        may_go_on.set()

    middleware = Blocking()
    entered = asyncio.ensure_future(middleware.around_arun(None).__aenter__())  # type: ignore[arg-type] # not looked at
    await cancel(entered)
    with pytest.raises(asyncio.CancelledError):
        await entered
    assert events == ["entered", "left"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("outbox", [False, True])
def test_headers_of_a_transaction_are_those_of_the_call(use: Callable[..., None], outbox: bool) -> None:
    use("Language", OUTBOX=outbox)
    with transaction.atomic(), translation.override("ja"):
        result = speak().enqueue()
        assert [entry.tasks.count("headers") for entry in OutboxEntry.objects.all()] == [1] * outbox
        translation.activate("de")
    assert connections["default"].in_atomic_block is False
    work()
    assert result.result() == "ja"


def test_headers_of_debounced_calls_are_those_of_the_last(use: Callable[..., None]) -> None:
    use("Language")
    debounced = speak(debounce=0.001)
    for language in ("ja", "de"):
        with translation.override(language):
            result = debounced.enqueue()
    payload = {"args": [], "kwargs": {}, "about": {"headers": {"language": "de"}}}
    assert json.loads(get_queue().get_task(result.id).payload_bytes) == payload


def test_a_bare_payload_passes_the_middleware_of_the_setting(use: Callable[..., None]) -> None:
    use("Facts", WORKER={"HANDLER": f"{HERE}.handle"})
    get_queue().push(Task.create("ann", 3, {"about": {"headers": {"a": "b"}}}))
    work()
    assert events[-2:] == [(1, [{"about": {"headers": {"a": "b"}}}], {}, False, {}), "handled"]


def handle(payload: Any) -> None:
    events.append("handled")


not_middleware = object()


class NeedsArguments(TaskMiddleware):
    def __init__(self, argument: int) -> None: ...


ready = NeedsArguments(1)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing", 'does not define a "missing"'),
        ("not_middleware", "is a object"),
        ("FairQueueNothing", "does not define"),
        ("Priority", "is a class"),
        ("NeedsArguments", "can't be made without arguments"),
    ],
)
def test_a_setting_that_names_no_middleware_is_refused(use: Callable[..., None], name: str, words: str) -> None:
    use(name)
    with pytest.raises(ConfigurationError, match=words):
        noop().enqueue()
    with pytest.raises(ConfigurationError, match=words):
        work()


def test_the_setting_may_name_an_instance_of_middleware(use: Callable[..., None]) -> None:
    use("ready")
    result = noop().enqueue()
    work()
    assert result.state is TaskState.FINISHED


@pytest.mark.parametrize("value", ["no path", 3, [3], [object], ["x y"]])
def test_a_task_refuses_other_values_as_middleware(value: Any) -> None:
    with pytest.raises(TaskUsageError, match="middleware must be a list of subclasses of TaskMiddleware"):

        @task(name="wrong", middleware=value)
        def wrong() -> None: ...
