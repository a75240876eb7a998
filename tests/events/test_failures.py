"""A server that is down when somebody saves something; mistakes in declarations."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest
from django.core import checks
from django.db import transaction

from django_fairque import ConfigurationError, task
from django_fairque.conf import get_queue
from django_fairque.events import Event, activation, changed, field_is, on_create, on_delete, on_m2m, on_save, rules
from django_fairque.models import OutboxEntry
from django_fairque.outbox.relay import relay_rows
from django_fairque.tasks.errors import TaskUsageError
from django_fairque.testing import capture_tasks
from tests.shop.models import Order

from .conftest import arrived

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_django import Settings
    from redis import Redis

    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.tasks.definition import AnyDefinition as Work
    from tests.servers import Server

pytestmark = pytest.mark.django_db(transaction=True)

NAME = "shop.Order:save:work"


def found(number: str) -> list[str]:
    """Return the messages of the checks of this number."""
    return [check.msg for check in checks.run_checks(tags=["fairque"]) if check.id == number]


@pytest.fixture
def down(settings: Settings, server: Server, redis: Redis) -> dict[str, Any]:
    """The settings that would work; in force are those of a server that can't be reached."""
    settings.FAIRQUE = {"REDIS": {"URL": "unix:///nowhere/at/all.sock"}, "QUEUE": {"REQUEST_TIMEOUT": 0.05}}
    return {"REDIS": {"URL": server.url}}


class TestServerDown:
    @pytest.mark.parametrize("in_transaction", [True, False])
    def test_a_save_succeeds_although_its_task_can_not_be_sent(
        self,
        queue: FairQueue,
        down: dict[str, Any],
        settings: Settings,
        work: Work,
        caplog: pytest.LogCaptureFixture,
        in_transaction: bool,
    ) -> None:
        on_save(Order).enqueue(work, "pk")
        with transaction.atomic() if in_transaction else nullcontext():
            order = Order.objects.create()
        assert Order.objects.filter(pk=order.pk).exists()
        assert "1 tasks for queue default could not be sent after the commit" in caplog.text
        settings.FAIRQUE = down
        order.save()
        assert arrived(get_queue()) == [[order.pk]]
        count = get_queue().event_counts()[NAME]
        assert (count.fired, count.failed) == (2, 1)
        assert "can't be reached" in count.error

    def test_an_explicit_enqueue_still_raises_while_the_server_is_down(self, down: dict[str, Any], work: Work) -> None:
        from django_fairque import RedisConnectionError

        on_save(Order).enqueue(work, "pk")
        with pytest.raises(RedisConnectionError), transaction.atomic():  # noqa: PT012
            Order.objects.create()
            work.enqueue("by hand")
        assert Order.objects.exists(), "the transaction had committed"

    @pytest.mark.parametrize("in_transaction", [True, False])
    def test_an_outbox_keeps_the_events_while_the_server_is_down(
        self, down: dict[str, Any], settings: Settings, work: Work, in_transaction: bool
    ) -> None:
        settings.FAIRQUE = {**settings.FAIRQUE, "OUTBOX": True}
        on_save(Order).enqueue(work, "total")
        with transaction.atomic() if in_transaction else nullcontext():
            for _ in range(1 + in_transaction):
                Order.objects.create(total=1)
        assert OutboxEntry.objects.count() == 1
        settings.FAIRQUE = {**down, "OUTBOX": True}
        assert relay_rows("default").tasks == 1
        assert arrived(get_queue()) == [[1]]

    def test_an_event_refused_by_a_full_backlog_counts(self, queue: FairQueue, settings: Settings, work: Work) -> None:
        settings.FAIRQUE = {**settings.FAIRQUE, "QUEUE": {"MAX_BACKLOG": 1}}
        on_save(Order).enqueue(work, "total")
        with transaction.atomic():
            Order.objects.create(total=1)
            Order.objects.create(total=2)
        arrived(queue)
        Order.objects.create(total=3)
        count = queue.event_counts()[NAME]
        assert (count.fired, count.failed) == (3, 1)
        assert "backlog is full" in count.error


@pytest.mark.parametrize("in_transaction", [True, False])
@pytest.mark.parametrize("fairque", [{}, {"OUTBOX": True}, {"TYPO": 1}])
def test_a_save_succeeds_without_a_usable_configuration(
    settings: Settings, work: Work, caplog: pytest.LogCaptureFixture, fairque: dict[str, Any], in_transaction: bool
) -> None:
    settings.FAIRQUE = fairque  # DEBUG is false here, so no server is named
    on_save(Order).enqueue(work, "pk")
    with transaction.atomic() if in_transaction else nullcontext():
        order = Order.objects.create()
        order.save()
    assert Order.objects.filter(pk=order.pk).exists()
    (first, *_) = caplog.messages
    assert first.startswith(f"<event {NAME}>: task work was not enqueued: ")
    assert ("unknown key" if "TYPO" in fairque else "no server is named") in first
    with pytest.raises(ConfigurationError):
        work.enqueue()


def test_an_outbox_delivers_events_and_their_counts(queue: FairQueue, settings: Settings, work: Work) -> None:
    settings.FAIRQUE = {**settings.FAIRQUE, "OUTBOX": True}
    on_save(Order).enqueue(work, "pk")
    with transaction.atomic():
        order = Order.objects.create()
        order.save()
        assert OutboxEntry.objects.count() == 1
    assert OutboxEntry.objects.count() == 0
    assert arrived(queue) == [[order.pk]]
    count = queue.event_counts()[NAME]
    assert (count.fired, count.coalesced) == (2, 1)


class TestMistakes:
    """Each is an error of ``manage.py check``, is logged, and leaves the event switched off: saving goes on."""

    @pytest.mark.parametrize(
        ("declare", "words"),
        [
            (lambda work: on_save("shop.Ordre").enqueue(work), "did you mean 'shop.Order'?"),
            (lambda work: on_save("shop").enqueue(work), "there is no model 'shop'"),
            (lambda work: on_save(Order, when=changed("stauts")).enqueue(work), "did you mean 'status'?"),
            (lambda work: on_save(Order, when=~changed("tags")).enqueue(work), "has no database column"),
            (lambda work: on_save(Order, when=field_is("a__b", 1) | changed("status")).enqueue(work), "'a'"),
            (lambda work: on_save(Order, user="owner").enqueue(work), "user: shop.Order has no field or attribute"),
            (lambda work: on_save(Order).enqueue(work, "customer__slog"), "argument 1: shop.Customer has no"),
            (lambda work: on_save(Order).enqueue(work, x="totl"), "argument 'x': shop.Order has no"),
            (lambda work: on_save(Order).enqueue("wrok", "pk"), "did you mean 'work'?"),
            (lambda work: on_m2m(Order, "customer").enqueue(work, "pk"), "it has tags, helpers"),
            (lambda work: on_m2m(Order, "nothing").enqueue(work, "pk"), "no many-to-many field 'nothing'"),
            (lambda work: on_m2m(Order, "helpers", actions="clear").enqueue(work), "is a 'remove' of each row"),
        ],
    )
    def test_an_event_on_an_unknown_model_or_field_is_switched_off_with_an_error(
        self,
        queue: FairQueue,
        work: Work,
        declare: Callable[[Work], object],
        words: str,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        declare(work)
        (error,) = found("fairque.E020")
        assert words in error
        assert "is switched off" in caplog.text
        Order.objects.create().tags.set([])
        assert arrived(queue) == []

    def test_a_delete_event_on_rows_that_the_database_deletes_is_a_warning(
        self, work: Work, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Only Django 6.1 has `DB_CASCADE`; which function a field names is all that is looked at."""
        from django.db import models

        on_delete(Order).enqueue(work, "pk")
        assert found("fairque.W020") == []
        monkeypatch.setattr(models, "DB_CASCADE", models.CASCADE, raising=False)
        assert (
            "objects of shop.Order that go with their customer are deleted by the database" in found("fairque.W020")[0]
        )

    def test_arguments_that_do_not_fit_the_task_are_reported_by_the_check(self, work: Work) -> None:
        @task(name="two")
        def two(a: int, b: int) -> None: ...

        on_save(Order).enqueue(two, "pk")
        (error,) = found("fairque.E020")
        assert "missing a required argument: 'b'" in error

    @pytest.mark.parametrize("of", ["the task", "the event"])
    def test_an_event_with_an_undeclared_queue_is_switched_off(
        self, queue: FairQueue, settings: Settings, of: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        settings.FAIRQUE = {**settings.FAIRQUE, "QUEUES": {"default": {}, "mail": {}}}

        @task(name="send", queue="mial" if of == "the task" else "mail")
        def send(pk: int) -> None: ...

        on_create(Order, **({"queue": "mial"} if of == "the event" else {})).enqueue(send, "pk")  # type: ignore[arg-type]
        (error,) = found("fairque.E020")
        assert "queue 'mial' is not declared in QUEUES" in error
        assert "did you mean 'mail'?" in error
        assert "is switched off" in caplog.text
        Order.objects.create()

    def test_events_are_not_checked_while_the_configuration_has_mistakes(self, settings: Settings) -> None:
        settings.FAIRQUE = {"REDIS": {"URI": "redis://127.0.0.1:1/0"}}

        @task(name="send", queue="mail")
        def send(pk: int) -> None: ...

        on_create(Order).enqueue(send, "pk")
        assert rules.rules()[0].is_on
        assert found("fairque.E020") == []

    def test_a_correct_event_has_no_mistake(self, work: Work) -> None:
        on_save(Order, when=changed("customer") & field_is("customer__slug", "x"), user="customer__pk").enqueue(
            work, "customer__slug", "customer_id", "pk", "data", "_meta"
        )
        assert found("fairque.E020") == []

    @pytest.mark.parametrize("given", [None, "", len, 5])
    def test_an_event_without_a_task_is_refused(self, given: Any) -> None:
        with pytest.raises(TaskUsageError, match="enqueues a task"):
            on_save(Order).enqueue(given)
        with pytest.raises(TaskUsageError, match="put @task below the event"):
            on_save(Order)(given)

    @pytest.mark.parametrize(
        ("option", "words"),
        [
            ({"user_id": "a"}, "give user=…"),
            ({"on_commit": False}, "the event decides that"),
            ({"database": "other"}, "the event decides that"),
            ({"user": 5}, r"user must be a field path, Value\(…\) or a callable"),
            ({"dealy": 5}, "shop.Order:save: unknown option 'dealy'; did you mean 'delay'?"),
            ({"colour": "red"}, "expected one of args, debounce, debounce_max_wait, delay, depends_on"),
            ({"batch": 5}, r"expected one of args, .*when, got batch=5; write @task\(batch=…\)"),
            ({"batch_wait": 5}, r"write @task\(batch_wait=…\)"),
            ({"retry_on": OSError}, r"write @task\(retry_on=…\)"),
            ({"debounce": -1}, "shop.Order:save: debounce must be a number of seconds"),
            ({"delay": 5, "execute_after": 5}, "say the same thing in two ways"),
        ],
    )
    def test_invalid_options_of_an_event_are_refused(self, option: dict[str, Any], words: str) -> None:
        """The declaration itself raises the error, because no model, task or setting could make these options valid."""
        with pytest.raises(TaskUsageError, match=words):
            on_save(Order, **option)
        assert rules.rules() == ()

    def test_an_error_in_a_condition_fails_the_save(self, queue: FairQueue, work: Work) -> None:
        on_create(Order, when=lambda event: 1 / 0).enqueue(work)
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            Order.objects.create()
        assert not Order.objects.exists()


class TestRegistry:
    def test_events_declared_before_the_models_are_ready_fire_from_then_on(
        self, queue: FairQueue, work: Work, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(rules, "rule_registry", rules._RuleRegistry())
        on_create("shop.Order").enqueue("later", "pk")
        Order.objects.create()
        assert arrived(queue) == []

        @task(name="later")
        def later(pk: int) -> None: ...

        activation.ready()
        order = Order.objects.create()
        assert arrived(queue) == [[order.pk]]

    def test_a_task_declared_later_activates_events(self, queue: FairQueue, caplog: pytest.LogCaptureFixture) -> None:
        """An app behind this one in `INSTALLED_APPS` may import its tasks in its own `ready`."""
        on_create("shop.Order").enqueue("later", "pk")
        Order.objects.create()
        assert arrived(queue) == []

        @task(name="later")
        def later(pk: int) -> None: ...

        assert found("fairque.E020") == []
        assert rules.rules()[0].is_on
        order = Order.objects.create()
        assert arrived(queue) == [[order.pk]]

    def test_events_get_unique_names(self, work: Work) -> None:
        for _ in range(3):
            on_create(Order).enqueue(work, "pk")
        on_create(Order, name="mine").enqueue(work, "pk")
        name = "shop.Order:create:work"
        assert [rule.name for rule in rules.rules()] == [name, f"{name}#2", f"{name}#3", "mine"]


class TestCaptured:
    """Events in tests of a project."""

    def test_tasks_of_events_are_captured_with_their_user_and_arguments(self, queue: FairQueue, work: Work) -> None:
        on_save(Order, user="status").enqueue(work, "pk", kind="total")
        with capture_tasks() as tasks, transaction.atomic():
            order = Order.objects.create(total=4)
            order.save()
        (captured,) = tasks
        assert (captured.user_id, captured.args, captured.kwargs) == ("new", [order.pk], {"kind": 4})
        assert queue.event_counts() == {}

    def test_captured_events_write_no_row_to_the_outbox(self, queue: FairQueue, settings: Settings, work: Work) -> None:
        settings.FAIRQUE = {**settings.FAIRQUE, "OUTBOX": True}
        on_save(Order).enqueue(work, "pk")
        with capture_tasks() as tasks, transaction.atomic():
            Order.objects.create()
            work.enqueue("by hand")
            assert not OutboxEntry.objects.exists()
        assert len(tasks) == 2

    def test_events_that_are_rolled_back_are_not_captured(self, queue: FairQueue, work: Work) -> None:
        on_save(Order).enqueue(work, "pk")
        with capture_tasks() as tasks:
            with pytest.raises(ZeroDivisionError), transaction.atomic():  # noqa: PT012
                Order.objects.create()
                raise ZeroDivisionError
            assert not list(tasks)
            Order.objects.create()
        assert len(tasks) == 1


@pytest.mark.django_db(transaction=False)
def test_a_test_case_with_commit_callbacks_sends_a_task_for_each_save(
    queue: FairQueue, work: Work, django_capture_on_commit_callbacks: Any
) -> None:
    on_save(Order).enqueue(work, "pk")
    with django_capture_on_commit_callbacks(execute=True) as callbacks:
        order = Order.objects.create()
        order.save()
    assert len(callbacks) == 2
    assert arrived(queue) == [[order.pk], [order.pk]]


def test_an_event_and_its_rule_have_a_readable_repr(work: Work) -> None:
    event = Event("create", Order, "default", pk=3)
    assert "kind='create'" in repr(event)
    on_create(Order).enqueue(work, "pk")
    assert repr(rules.rules()[0]) == "<event shop.Order:create:work>"
