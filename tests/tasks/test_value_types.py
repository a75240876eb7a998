"""Arguments and results of types that JSON lacks arrive as what they were, by the function's annotations."""

import enum
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from threading import Thread
from typing import Annotated, Any, Literal, NamedTuple, NewType, Optional, TypedDict
from uuid import UUID, uuid4
from zoneinfo import ZoneInfo

import pytest
from asgiref.sync import sync_to_async
from django.core.management import call_command
from django.db import models
from pydantic import BaseModel, Field, SecretStr
from pydantic_core import core_schema

from django_fairque import FailureType, TaskResult, TaskSerializationError, current_task, task
from django_fairque.conf import aclose_queues
from django_fairque.events import on_save
from django_fairque.tasks import registry
from django_fairque.tasks.definition import AnyDefinition
from django_fairque.tasks.errors import TaskUsageError
from django_fairque.tasks.execution import Services
from django_fairque.tasks.value_types import is_json
from django_fairque.testing import assert_enqueued, capture_tasks, eager
from tests.fixture_types import FairQueue, Redis
from tests.shop.models import Customer, Order

from .helpers import run_next

KEY = UUID("0198c7a5-1111-7000-8000-000000000001")
NOON = datetime(2026, 7, 1, 12, 30, 15, 123456, tzinfo=timezone.utc)


class Size(enum.Enum):
    SMALL = "s"
    LARGE = 2


class Point(enum.Enum):
    ORIGIN = (0, 0)


class Status(models.TextChoices):
    PAID = "paid", "Paid"


@dataclass
class Line:
    sku: UUID
    price: Decimal
    due: date | None = None


@dataclass
class GiftLine(Line):
    text: str = ""


class Cart(BaseModel):
    id: UUID
    tags: set[str] = set()
    size: Size = Field(Size.SMALL, alias="cartSize")


class Options(TypedDict):
    size: tuple[int, int]


class Pair(NamedTuple):
    number: int
    key: UUID


Key = NewType("Key", UUID)
received: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_received() -> None:
    received.clear()


def taking(hint: Any) -> "AnyDefinition":
    """A task with one parameter of this type, which it returns."""

    def take(value, *more):  # type: ignore[no-untyped-def]
        received.append(value)
        return value

    take.__annotations__ = {"value": hint, "return": hint}
    return task(name="take")(take)


@pytest.mark.parametrize(
    ("hint", "value", "stored"),
    [
        (UUID, KEY, str(KEY)),
        (Key, KEY, str(KEY)),
        (datetime, NOON, "2026-07-01T12:30:15.123456Z"),
        (datetime, NOON.replace(tzinfo=None), "2026-07-01T12:30:15.123456"),
        (datetime, NOON.astimezone(ZoneInfo("Asia/Tokyo")), "2026-07-01T21:30:15.123456+09:00"),
        (date, NOON.date(), "2026-07-01"),
        (time, time(9, 30), "09:30:00"),
        (timedelta, -timedelta(days=1, microseconds=1), "-P1DT0.000001S"),
        (Decimal, Decimal("1.10"), "1.10"),
        (Size, Size.LARGE, 2),
        (Status, Status.PAID, "paid"),
        (Line, Line(KEY, Decimal("9.90")), {"sku": str(KEY), "price": "9.90", "due": None}),
        (Cart, Cart(id=KEY, cartSize=Size.LARGE), {"id": str(KEY), "tags": [], "cartSize": 2}),
        (Pair, Pair(1, KEY), [1, str(KEY)]),
        (Optional[UUID], KEY, str(KEY)),  # noqa: UP045 - a separate class before Python 3.14
        (UUID | None, None, None),
        (list[UUID], [KEY], [str(KEY)]),
        (Sequence[UUID], [KEY], [str(KEY)]),
        (Iterable[UUID], [KEY], [str(KEY)]),
        (dict[str, Decimal], {"a": Decimal("0.5")}, {"a": "0.5"}),
        (Mapping[str, list[Line]], {"a": []}, {"a": []}),
        (dict[int, str], {1: "a"}, {"1": "a"}),
        (tuple[int, UUID], (1, KEY), [1, str(KEY)]),
        (frozenset[Size], frozenset([Size.SMALL]), ["s"]),
        (set[str], {"d", "b", "a", "c"}, ["a", "b", "c", "d"]),
        (int | Decimal, 5, 5),
        (int | Decimal, Decimal(5), "5"),
        (str | UUID, "a text", "a text"),
        (Annotated[UUID, "the key"], KEY, str(KEY)),
    ],
)
def test_a_value_arrives_unchanged(queue: FairQueue, services: Services, hint: Any, value: Any, stored: Any) -> None:
    result = taking(hint).enqueue(value)
    payload = json.loads(queue.get_task(result.id).payload_bytes)
    assert payload == {"args": [stored], "kwargs": {}}  # a worker without the types reads this
    assert run_next(queue, services) == "finished"
    assert received == [value]
    assert type(received[0]) is type(value)
    assert result.result() == value
    assert type(TaskResult(result.id).result()) is type(value)
    assert queue.get_task(result.id).result == stored


@pytest.mark.parametrize(
    ("hint", "value", "problem"),
    [
        (UUID, str(KEY), r"expected UUID, got str '0198c7a5-.*instance of UUID"),
        (datetime, "2026-07-01", "expected datetime, got str"),
        (date, NOON, "expected date, got datetime"),
        (Decimal, 1, "expected Decimal, got int 1"),
        (Decimal, Decimal("NaN"), r"got Decimal Decimal\('NaN'\): Input should be a finite number"),
        (Size, "s", "expected Size, got str 's'"),
        (list[UUID], [KEY, "x"], r"expected list\[UUID\], got list .*at 1: Input should be an instance of UUID"),
        (UUID | None, "x", r"expected UUID \| None, got str"),
        (Line, {"sku": KEY}, "expected Line, got dict"),
        (Line, Line("x", Decimal(1)), "Line .*can't be sent as Line: .*(sku|uuid)"),  # type: ignore[arg-type]
        (Line, GiftLine(KEY, Decimal(1), text="for you"), "GiftLine .*it would arrive as Line"),
        (Point, Point.ORIGIN, r"can't be sent as Point: expected Point as JSON, got list"),
        (str | UUID, str(KEY), r"can't be sent as str \| UUID: it would arrive as UUID"),
        (SecretStr, SecretStr("x"), "it would arrive as SecretStr"),
        (bytes, b"\xff", "can't be sent as bytes"),
    ],
)
def test_a_wrong_value_is_refused_with_its_argument(queue: FairQueue, hint: Any, value: Any, problem: str) -> None:
    with pytest.raises(TaskUsageError, match=rf"(?s)^take\.enqueue\(\): argument 'value': .*{problem}"):
        taking(hint).enqueue(value)
    with pytest.raises(TaskUsageError, match="argument 'value'"):
        taking(hint).enqueue_many([((value,), {})])
    assert queue.pop("w") is None


def test_each_argument_is_found_by_its_parameter(queue: FairQueue, services: Services) -> None:
    @task(name="many", user=lambda who, *_, **__: who.hex)
    def many(who: UUID, plain: str, /, *days: date, limit: Decimal = Decimal("0.5"), **prices: Decimal) -> None:
        received.append((who, plain, days, limit, prices))

    result = many.enqueue(KEY, "2026-01-01", NOON.date(), NOON.date(), a=Decimal(1))
    assert queue.get_task(result.id).user_id == KEY.hex
    assert run_next(queue, services) == "finished"
    assert received == [(KEY, "2026-01-01", (NOON.date(),) * 2, Decimal("0.5"), {"a": Decimal(1)})]
    with pytest.raises(TaskUsageError, match="argument 'days': expected date, got str"):
        many.enqueue(KEY, "", "2026-01-01")  # type: ignore[arg-type]
    with pytest.raises(TaskUsageError, match="argument 'b': expected Decimal, got float"):
        many.enqueue(KEY, "", b=1.5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "hint",
    [
        *(str, int, float, bool, None, list, dict, Any, object, list[int], dict[str, Any], Sequence[str], int | None),
        *(
            Options,
            list[Options],
            Literal["a", 1],
            Annotated[int, Field(gt=0)],
            NewType("Number", int),
            Mapping[str, list[int | str]],
        ),
    ],
)
def test_types_of_json_are_not_converted(hint: Any) -> None:
    assert is_json(hint)
    assert taking(hint).types is None


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        (UUID, False),
        (datetime | None, False),
        (list[Decimal] | None, False),
        (tuple[UUID, ...], False),
        (dict[str, set[date]], False),
        (tuple[Literal["a"], timedelta, Any], False),
        (Line, True),
        (Size, True),
        (list[Line], True),
        (Annotated[UUID, Field(description="a key")], True),
        (tuple[list[Annotated[int, Field(gt=0)]], UUID], True),
    ],
)
def test_types_of_the_project_are_distinguished(hint: Any, expected: bool) -> None:
    types = taking(hint).types
    assert types is not None
    assert types.loads_by_project is expected


def test_an_annotation_may_name_a_class_that_is_defined_later(queue: FairQueue, services: Services) -> None:
    definition = taking("Later")
    assert definition.types is not None
    globals()["Later"] = UUID
    try:
        definition.enqueue(KEY)
        assert run_next(queue, services) == "finished"
    finally:
        del globals()["Later"]
    assert received == [KEY]


class Slow:
    """A type whose adapter takes long to make: meanwhile another thread uses the same task."""

    meanwhile: Any = None

    def __init__(self, text: str) -> None:
        self.text = text

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: object) -> core_schema.CoreSchema:
        meanwhile, cls.meanwhile = cls.meanwhile, None
        if meanwhile is not None:
            thread = Thread(target=meanwhile)
            thread.start()
            thread.join()
        return core_schema.no_info_plain_validator_function(cls)


def test_threads_that_use_a_task_first_at_the_same_time_all_convert() -> None:
    types = taking("Later").types
    assert types is not None
    Slow.meanwhile = lambda: received.extend(types.load(["by another thread"], {})[0])
    globals()["Later"] = Slow
    try:
        received.extend(types.load(["by this thread"], {})[0])
    finally:
        del globals()["Later"]
    assert [type(value) for value in received] == [Slow, Slow]


def test_a_name_that_is_never_defined_means_json_and_the_error_says_why(queue: FairQueue) -> None:
    definition = taking("OnlyForTypeCheckers")
    assert definition.enqueue("a text").id
    with pytest.raises(
        TaskSerializationError, match=r"argument 'value' is not JSON.*not used \(NameError: name 'OnlyFor"
    ):
        definition.enqueue(KEY)


def test_a_type_that_pydantic_does_not_know_means_json(queue: FairQueue) -> None:
    assert taking(range).enqueue([1, 2]).id
    with pytest.raises(TaskSerializationError, match=r"argument 'value' is not JSON.*PydanticSchemaGenerationError"):
        taking(range).enqueue(range(2))


def test_a_missing_annotation_is_named_in_the_error(queue: FairQueue) -> None:
    @task(name="bare")
    def bare(first, second=None):  # type: ignore[no-untyped-def]
        """Nothing."""

    with pytest.raises(TaskSerializationError, match=r"argument 'second' is not JSON: .*annotate .*\(second: UUID\)"):
        bare.enqueue(1, second=KEY)
    with pytest.raises(TaskSerializationError, match=r"(?m)argument 'first' is not JSON: .*None$"):
        bare.enqueue(object())
    with pytest.raises(TaskSerializationError, match="payload takes"):
        bare.enqueue("x" * 300_000)


@pytest.mark.parametrize("hint", [Any, UUID, Order])
@pytest.mark.parametrize("nested", [False, True])
def test_a_model_instance_is_refused_with_advice(queue: FairQueue, hint: Any, nested: bool) -> None:
    order = Order(pk=5)
    with pytest.raises(
        (TaskUsageError, TaskSerializationError),
        match=rf"argument 'value' {'holds' if nested else 'is'} a model instance \(shop\.Order\); pass its primary key",
    ):
        taking(hint).enqueue({"order": [order]} if nested else order)
    with pytest.raises((TaskUsageError, TaskSerializationError), match="is a QuerySet; pass a list of primary keys"):
        taking(hint).enqueue(Order.objects.all())


def test_a_stored_argument_that_does_not_fit_makes_a_dead_letter(queue: FairQueue, services: Services) -> None:
    taking(str).enqueue("from an older version")
    taking(UUID)
    assert run_next(queue, services) == "dead"
    (letter,) = queue.dlq.list().items
    assert letter.failure_type is FailureType.POISONED
    assert "take: argument 'value': expected UUID as JSON, got str" in letter.reason
    assert "another version of the code" in letter.reason
    assert received == []
    taking(str)
    queue.dlq.requeue(letter.entry_id)
    assert run_next(queue, services) == "finished"
    assert received == ["from an older version"]


class Fussy(BaseModel):
    name: str

    def model_post_init(self, context: object, /) -> None:
        if self.name == "x":
            raise ZeroDivisionError("fussy")


def test_an_error_of_a_validator_fails_only_its_task(queue: FairQueue, services: Services) -> None:
    taking(dict).enqueue({"name": "x"})
    taking(Fussy)
    assert run_next(queue, services) == "dead"
    assert "ZeroDivisionError: fussy" in queue.dlq.list().items[0].reason


def test_a_result_that_does_not_fit_makes_a_dead_letter(queue: FairQueue, services: Services) -> None:
    @task(name="lies")
    def lies() -> UUID:
        return "no key"  # type: ignore[return-value]

    lies.enqueue()
    assert run_next(queue, services) == "dead"
    assert (
        "does not fit the annotation of the function: expected UUID, got str 'no key'"
        in queue.dlq.list().items[0].reason
    )


def test_a_result_that_does_not_fit_any_more_can_be_read_as_json(queue: FairQueue, services: Services) -> None:
    result = taking(str).enqueue("a text")
    run_next(queue, services)
    taking(UUID)
    with pytest.raises(TaskSerializationError, match="expected UUID as JSON"):
        result.result()
    assert result.task is not None
    assert result.task.result == "a text"


async def test_coroutines_convert_values(queue: FairQueue, services: Services) -> None:
    @task(name="later")
    async def later(at: datetime) -> date:
        received.append(at)
        return at.date()

    result = await later.aenqueue(NOON)
    assert await sync_to_async(run_next)(queue, services) == "finished"
    assert received == [NOON]
    assert await result.aresult() == NOON.date()
    assert await result.await_(1) == NOON.date()
    await aclose_queues()


def test_items_of_batches_are_converted(queue: FairQueue, services: Services) -> None:
    @task(name="batch", batch=10)
    def batch(items: list[Line]) -> list[Decimal | Exception]:
        received.extend(items)
        return [item.price for item in items]

    line = Line(KEY, Decimal("1.5"))
    result = batch.enqueue(line)
    assert run_next(queue, services) == "finished"
    assert received == [line]
    assert result.result() == Decimal("1.5")
    with pytest.raises(TaskUsageError, match=r"batch\.enqueue\(\): argument 'items': expected Line, got str"):
        batch.enqueue("x")  # type: ignore[call-overload]


def test_steps_and_results_of_parents_are_converted(queue: FairQueue, services: Services) -> None:
    @task(name="last")
    def last(day: date) -> None:
        received.append((day, current_task().parent_result()))

    (taking(Decimal).s(Decimal("0.1")) >> last.s(NOON.date())).enqueue()
    assert run_next(queue, services) == run_next(queue, services) == "finished"
    assert received == [Decimal("0.1"), (NOON.date(), Decimal("0.1"))]


@pytest.mark.django_db
def test_captured_and_eager_tasks_are_converted(queue: FairQueue) -> None:
    with capture_tasks() as capture:
        result = taking(Line).enqueue(Line(KEY, Decimal(1)))
        assert_enqueued("take", args=[Line(KEY, Decimal(1))], kwargs={})
        capture.run()
        assert result.result() == received[0] == Line(KEY, Decimal(1))
    with eager():
        assert taking(datetime).enqueue(NOON).result() == NOON
        (taking(Decimal).s(Decimal(1)) >> task(name="parent")(_read_parent).s()).enqueue()
    assert received[-1] == Decimal(1)


def _read_parent() -> None:
    received.append(current_task().parent_result())


def test_equal_converted_arguments_are_one_unique_call(queue: FairQueue) -> None:
    @task(name="once", unique_for=60)
    def once(key: UUID, rate: Decimal = Decimal("0.5")) -> None:
        """Nothing."""

    first = once.enqueue(KEY)
    assert once.enqueue(key=KEY, rate=Decimal("0.5")).id == first.id
    assert len({first.id, once.enqueue(uuid4()).id, once.enqueue(KEY, Decimal("0.6")).id}) == 3


def test_schedules_hold_their_arguments_as_json(queue: FairQueue, services: Services, settings: Any) -> None:
    definition = taking(date)
    queue.schedules.add("code", task=definition.s(NOON.date()), every=60)
    assert queue.schedules.list()[0].task["payload"]["args"] == ["2026-07-01"]
    call_command("fairque_schedule", "add", "cli", "--task", "take", "--args", '["2026-07-01"]', "--every", "60")
    assert [schedule.task["payload"]["args"] for schedule in queue.schedules.list()] == [["2026-07-01"]] * 2


@pytest.mark.django_db(transaction=True)
def test_model_events_follow_the_annotations(queue: FairQueue, services: Services) -> None:
    @task(name="changed")
    def changed(token: UUID, on: date | None, status: Status, customer: UUID | int, text: str) -> None:
        received.append((token, on, status, customer, text))

    rule = on_save(Order).enqueue(changed, "token", "on", "status", "customer", "token")
    del rule
    order = Order.objects.create(on=NOON.date(), status="paid", customer=Customer.objects.create(slug="a"))
    assert run_next(queue, services) == "finished"
    assert received == [(order.token, NOON.date(), Status.PAID, order.customer_id, str(order.token))]


def test_a_handler_of_payloads_without_a_task_name_receives_the_json_value(
    queue: FairQueue, services: Services, redis: Redis
) -> None:
    from dataclasses import replace

    from django_fairque import Task

    def handle(payload: UUID) -> None:
        received.append(payload)

    queue.push(Task.create("acme", 3, str(KEY)))
    assert run_next(queue, replace(services, handler=handle)) == "finished"
    assert received == [str(KEY)]
    assert registry.find("") is None
