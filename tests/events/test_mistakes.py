"""Where mistakes in declarations of events are reported, and what they stop."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest
from django.core import checks
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.core.management import CommandError, call_command
from django.core.management.base import SystemCheckError
from django.db import models
from django.test import Client

from django_fairque import AsyncWorker, ConfigurationError, Worker, task
from django_fairque.events import EventQuerySet, activation, on_create, on_delete, on_m2m, on_save, on_update, rules
from tests.shop.models import Customer, GiftOrder, Order, RushOrder

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_django import Settings

    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.tasks.definition import AnyDefinition as Work

MIDDLEWARE = "django_fairque.middleware.ModelEventCheckMiddleware"
FIRST = (
    "the model event shop.Order:save:work is switched off: argument 1: shop.Order has no field or attribute 'changed'"
)
SECOND = "the model event shop.Order:create:wrok is switched off: no task named 'wrok' is registered"


@pytest.fixture
def mistakes(queue: FairQueue, work: Work) -> None:
    """Two events, each with a mistake."""
    on_save(Order).enqueue(work, "changed")
    on_create(Order).enqueue("wrok")


def found(number: str, *, deploy: bool = False) -> list[checks.CheckMessage]:
    messages = checks.run_checks(tags=["fairque"], include_deployment_checks=deploy)
    return [message for message in messages if message.id == f"fairque.{number}"]


@pytest.mark.usefixtures("mistakes")
class TestMistakes:
    def test_a_check_warns_about_each_mistake_in_events(self) -> None:
        first, second = found("E020")
        assert first.level == second.level == checks.WARNING
        assert f"{FIRST}; write Value('changed') if the text itself is meant" in first.msg
        assert SECOND in second.msg

    def test_a_deployment_check_reports_all_mistakes_in_events(self) -> None:
        (error,) = (message for message in found("E020", deploy=True) if message.level == checks.ERROR)
        assert FIRST in error.msg
        assert SECOND in error.msg
        with pytest.raises(SystemCheckError):
            call_command("check", deploy=True, tags=["fairque"], stderr=StringIO())

    @pytest.mark.django_db(databases="__all__")
    @pytest.mark.parametrize("command", ["check", "makemigrations"])
    def test_commands_that_send_no_task_run_in_spite_of_mistakes_in_events(self, command: str) -> None:
        options: dict[str, Any] = {"dry_run": True, "skip_checks": False} if command == "makemigrations" else {}
        call_command(command, stdout=StringIO(), stderr=StringIO(), **options)

    @pytest.mark.parametrize("start", [Worker, AsyncWorker, lambda: call_command("fairque_worker", "--burst")])
    def test_a_worker_refuses_to_start_with_mistakes_in_events(self, start: Callable[[], object]) -> None:
        with pytest.raises((ConfigurationError, CommandError)) as raised:
            start()
        assert "2 mistakes in what the project declares; correct them\n- " in str(raised.value)
        assert FIRST in str(raised.value)
        assert SECOND in str(raised.value)

    def test_the_health_command_names_mistakes_in_events(self, settings: Settings) -> None:
        out = StringIO()
        with pytest.raises(SystemExit) as ended:
            call_command("fairque_health", stdout=out)
        assert ended.value.code == 1
        assert out.getvalue().startswith("degraded\n")
        assert f"- {FIRST}" in out.getvalue()

    def test_the_ready_probe_names_mistakes_in_events_and_succeeds(self, settings: Settings) -> None:
        settings.FAIRQUE = {**settings.FAIRQUE, "MONITOR": {"TOKEN": "a-token-that-is-long-enough"}}
        answer = Client().get("/fairque/ready/", headers={"Authorization": "Bearer a-token-that-is-long-enough"})
        assert answer.status_code == 200
        state = answer.json()["queues"]["default"]
        assert state["status"] == "degraded"
        assert any(reason.startswith(FIRST) for reason in state["reasons"])

    @pytest.mark.parametrize("handler", [WSGIHandler, ASGIHandler])
    def test_the_middleware_for_event_checks_stops_a_web_process_with_mistakes(
        self, handler: Callable[[], object], settings: Settings
    ) -> None:
        handler()
        settings.MIDDLEWARE = [*settings.MIDDLEWARE, MIDDLEWARE]
        with pytest.raises(ConfigurationError, match="2 mistakes in what the project declares"):
            handler()


@pytest.mark.parametrize("handler", [WSGIHandler, ASGIHandler])
def test_the_middleware_for_event_checks_removes_itself_if_there_is_no_mistake(
    handler: Callable[[], Any], settings: Settings, work: Work
) -> None:
    on_save(Order).enqueue(work, "pk")
    settings.MIDDLEWARE = [MIDDLEWARE]
    made = handler()
    assert "ModelEventCheckMiddleware" not in repr(made._middleware_chain)


def test_an_event_with_a_later_task_is_no_mistake(queue: FairQueue) -> None:
    on_create(Order).enqueue("later", "pk")
    assert len(found("E020")) == 1

    @task(name="later")
    def later(pk: int) -> None: ...

    assert found("E020") == []
    Worker(burst=True)


class TestUnseenBulkOperations:
    def test_a_manager_without_event_support_for_bulk_operations_is_named(self, work: Work) -> None:
        on_update(Customer).enqueue(work, "pk")
        on_update(Order).enqueue(work, "pk")
        (warning,) = found("W021", deploy=True)
        assert warning.level == checks.WARNING
        assert warning.msg.endswith(": shop.Customer (objects)")
        assert "EventQuerySet.as_manager(), or list EventQuerySetMixin before" in str(warning.hint)

    @pytest.mark.parametrize("declare", [on_delete, lambda model: on_m2m(model, "tags")])
    def test_managers_are_checked_only_if_an_event_is_about_saving(self, work: Work, declare: Any) -> None:
        declare(Order).enqueue(work, "pk")
        on_delete(Customer).enqueue(work, "pk")
        assert found("W021", deploy=True) == []

    def test_managers_of_child_models_are_checked_too(self, work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
        on_create(Order).enqueue(work, "pk")
        assert found("W021", deploy=True) == []
        hidden = models.Manager[Any]()
        hidden.name = "hidden"
        seen = EventQuerySet.as_manager()
        for model in (GiftOrder, RushOrder):
            monkeypatch.setitem(model._meta.__dict__, "managers", [seen, hidden])
        (warning,) = found("W021", deploy=True)
        assert warning.msg.endswith(": shop.GiftOrder (hidden); shop.RushOrder (hidden)")


def test_mistakes_in_events_are_found_before_models_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "rule_registry", rules._RuleRegistry())
    on_create("shop.Ordre").enqueue("work")
    assert rules.mistakes() == []
    activation.ready()
    (mistake,) = rules.mistakes()
    assert "did you mean 'shop.Order'?" in mistake
