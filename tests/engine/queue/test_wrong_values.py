"""Values that public calls get and can't use: errors of the package, with messages that are short whatever the value is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pytest

from django_fairque import (
    FairQueueError,
    TaskSerializationError,
    Worker,
    aget_queue,
    get_queue,
    task,
)
from django_fairque.conf import WorkerConfig, close_queues
from django_fairque.engine.model.errors import MAX_QUOTED_CHARACTERS, short
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.model.payload import MAX_PAYLOAD_DEPTH
from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.tasks import registry
from django_fairque.worker import AsyncWorker
from tests.engine.conftest import pop
from tests.servers import Server

if TYPE_CHECKING:
    from pytest_django import Settings  # the oldest supported version does not export it


class Broken:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


LARGE = "x" * 18_000_000
WRONG: list[Any] = [
    *(None, [], {}, b"", b"\xff", "\ud800", float("nan"), float("inf"), -1, 10**5000, True, object(), Broken()),
    *(LARGE, LARGE.encode(), [LARGE], nested(100_000)),
]


@pytest.fixture(autouse=True)
def configured(server: Server, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    settings.FAIRQUE = {"REDIS": {"URL": server.url}, "ENQUEUE_ON_COMMIT": False}
    monkeypatch.setattr(registry, "_tasks", {})
    yield
    close_queues()


def declare() -> Any:
    @task(name="work")
    def work(number: Any = 1) -> None: ...

    return work


SCHEDULE_OPTIONS = ("every", "cron", "timezone", "start", "expires")


def add_schedule(option: str, queue: FairQueue, wrong: Any) -> None:
    interval = {} if option == "cron" else {"every": 60}
    queue.schedules.add("s", task=Task.create("u", 3, 1), **{**interval, option: wrong})


CALLS: dict[str, Callable[[FairQueue, Any], object]] = {
    "Task.create(name)": lambda _, wrong: Task.create("u", 3, 1, name=wrong),
    "Task.create(user_id)": lambda _, wrong: Task.create(wrong, 3, 1),
    "Task.create(priority)": lambda _, wrong: Task.create("u", wrong, 1),
    "Task.create(payload)": lambda _, wrong: Task.create("u", 3, wrong),
    "Task.create(task_id)": lambda _, wrong: Task.create("u", 3, 1, task_id=wrong),
    "Task.create(max_retries)": lambda _, wrong: Task.create("u", 3, 1, max_retries=wrong),
    "Task.create(execute_after)": lambda _, wrong: Task.create("u", 3, 1, execute_after=wrong),
    "Task.create(expires_at)": lambda _, wrong: Task.create("u", 3, 1, expires_at=wrong),
    "Task.create(timeout)": lambda _, wrong: Task.create("u", 3, 1, timeout=wrong),
    "Task.create(depends_on)": lambda _, wrong: Task.create("u", 3, 1, depends_on=wrong),
    "Task.create(on_dependency_failure)": lambda _, wrong: Task.create("u", 3, 1, on_dependency_failure=wrong),
    "Task.create(run_id)": lambda _, wrong: Task.create("u", 3, 1, run_id=wrong),
    "Task.from_lua_result": lambda _, wrong: Task.from_lua_result(wrong),
    "get_queue": lambda _, wrong: get_queue(wrong),
    "settle": lambda queue, wrong: queue.settle(wrong),
    **{f"schedules.add({option})": partial(add_schedule, option) for option in SCHEDULE_OPTIONS},
    "enqueue": lambda _, wrong: declare().enqueue(wrong),
    "enqueue_many": lambda _, wrong: declare().enqueue_many(wrong),
    "enqueue_many of one": lambda _, wrong: declare().enqueue_many([wrong]),
    "using(user)": lambda _, wrong: declare().using(user=wrong).enqueue(),
    "using(delay)": lambda _, wrong: declare().using(delay=wrong),
    "using(task_id)": lambda _, wrong: declare().using(task_id=wrong).enqueue(),
    "task(name)": lambda _, wrong: task(name=wrong)(lambda: None),
    "Worker": lambda _, wrong: Worker(wrong),
    "Worker of one": lambda _, wrong: Worker([wrong]),
    "Worker(concurrency)": lambda _, wrong: Worker(concurrency=wrong),
    "Worker(users)": lambda _, wrong: Worker(users=wrong),
    "AsyncWorker": lambda _, wrong: AsyncWorker(wrong),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_with_any_wrong_value_raises_a_short_error_of_the_package(queue: FairQueue, name: str) -> None:
    found = []
    for wrong in [*WRONG, WorkerConfig()]:
        try:
            CALLS[name](queue, wrong)
        except FairQueueError as error:  # noqa: PERF203 - a test
            if len(str(error)) > 1500:
                found.append(f"{short(wrong)}: {len(str(error))} characters")
        except Exception as error:  # noqa: BLE001 - the kinds of errors are what is tested
            found.append(f"{short(wrong)}: {type(error).__name__}: {str(error)[:200]}")
    assert found == []


async def test_a_wrong_name_of_an_asynchronous_queue_is_an_error_of_the_package() -> None:
    for wrong in WRONG:
        with pytest.raises(FairQueueError):
            await aget_queue(wrong)


@pytest.mark.parametrize("kind", [Worker, AsyncWorker])
def test_a_queue_configuration_given_as_queues_raises_an_error_with_its_name(kind: Any) -> None:
    with pytest.raises(FairQueueError, match="QueueConfig"):
        kind(QueueConfig())


def test_a_task_can_be_made_from_its_push_arguments() -> None:
    made = Task.create(
        *("u", 5, {"a": [1]}),
        task_id="t",
        name="n",
        execute_after=2e9,
        timeout=5,
        unique_key="k",
        unique_for=60,
        depends_on=["x"],
        on_dependency_failure="run",
        run_id="r",
        sla=3,
        max_retries=7,
        expires_at=2e9,
    )
    arguments = made.to_lua_args()
    found = Task.from_lua_result(arguments)
    assert found == made
    assert (found.payload_bytes, found.has_chosen_id) == (made.payload_bytes, True)
    plain = Task.from_lua_result(list(arguments))  # a serializer may turn tuples into lists
    assert plain.model_copy(update={"created_at": made.created_at}) == made.model_copy(
        update={"depends_on": (), "on_dependency_failure": "wait", "run_id": ""}
    )


@pytest.mark.parametrize("depth", [MAX_PAYLOAD_DEPTH, MAX_PAYLOAD_DEPTH + 1])
def test_the_depth_of_a_payload_is_limited(queue: FairQueue, depth: int) -> None:
    if depth > MAX_PAYLOAD_DEPTH:
        with pytest.raises(TaskSerializationError, match="nested too deeply for JSON"):
            Task.create("u", 3, nested(depth))
        return
    queue.push(Task.create("u", 3, nested(depth)))
    assert pop(queue, None).payload == nested(depth)
    queue.schedules.add("s", task=Task.create("u", 3, nested(depth - 1)), every=60)


@pytest.mark.parametrize("value", WRONG, ids=lambda value: type(value).__name__)
def test_a_wrong_value_is_quoted_in_few_characters(value: Any) -> None:
    assert len(short(value)) <= MAX_QUOTED_CHARACTERS + 25


@pytest.mark.parametrize("value", [None, True, 7, 1.5, "a'b", b"x", ["a", 1], {"a": [1]}, (1,), set()])
def test_a_small_value_is_shown_in_full(value: Any) -> None:
    assert short(value) == repr(value)


LONG_NAME: Any = {"x" * 1_000_000: 1}
NAMES: dict[str, Callable[[], object]] = {
    "enqueue": lambda: declare().enqueue(**LONG_NAME),
    "using": lambda: declare().using(**LONG_NAME),
    "task": lambda: cast("Any", task)(**LONG_NAME)(lambda: None),
    "schedules.add": lambda: get_queue().schedules.add("s", task=Task.create("u", 3, 1), every=60, **LONG_NAME),
    "Worker": lambda: Worker(**LONG_NAME),
    "WorkerConfig": lambda: WorkerConfig(**LONG_NAME),
    "QueueConfig": lambda: QueueConfig(**LONG_NAME),
    "QueueConfig(sla)": lambda: QueueConfig(sla=LONG_NAME),
}


@pytest.mark.parametrize("name", NAMES)
def test_long_argument_names_are_shortened_in_errors(name: str) -> None:
    """A caller may pass a customer's data as keywords."""
    with pytest.raises((FairQueueError, TypeError)) as caught:
        NAMES[name]()
    assert len(str(caught.value)) < 1500
