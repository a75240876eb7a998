"""Tests of the events that Sentry gets about failed tasks."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
import sentry_sdk

from django_fairque import AsyncWorker, Discard, Retry, Worker, as_user, get_queue, task
from django_fairque.conf import aclose_queues
from django_fairque.engine.model.task import Task
from django_fairque.integrations.sentry import FairqueIntegration
from django_fairque.testing import eager

if TYPE_CHECKING:
    from pytest_django import Settings

    from .conftest import Sent, StartSentry

pytestmark = pytest.mark.django_db(transaction=True)


def work() -> None:
    Worker(burst=True, concurrency=2).run()


def frames_of(event: dict[str, Any]) -> list[str]:
    return [frame["function"] for frame in event["exception"]["values"][0]["stacktrace"]["frames"]]


def paths_of(value: Any, text: str, path: str = "") -> list[str]:
    """Where in an event a text occurs."""
    if isinstance(value, dict):
        return [found for key, part in value.items() for found in paths_of(part, text, f"{path}.{key}")]
    if isinstance(value, list):
        return [found for index, part in enumerate(value) for found in paths_of(part, text, f"{path}.{index}")]
    return [path] if text in str(value) else []


def charge() -> None:
    raise ValueError("no credit")


def declare(name: str = "fails", *, is_async: bool = False, **options: Any) -> Any:
    """A task that fails."""

    def fails() -> None:
        charge()

    async def afails() -> None:
        await asyncio.sleep(0)
        charge()

    make: Any = task(name=name, **{"max_retries": 0, **options})
    return make(afails if is_async else fails)


@pytest.mark.parametrize("is_async", [False, True])
def test_an_error_has_its_frames_and_the_facts_of_the_task(sent: Sent, is_async: bool) -> None:
    result = declare(is_async=is_async).using(user_id="acme").enqueue()
    work()
    event = sent.event
    assert frames_of(event) == ["afails" if is_async else "fails", "charge"]
    (exception,) = event["exception"]["values"]
    assert (exception["type"], exception["value"]) == ("ValueError", "no credit")
    assert exception["mechanism"] == {"type": "fairque", "handled": False}
    assert (event["level"], event["transaction"]) == ("error", "fails")
    assert event["transaction_info"] == {"source": "task"}
    assert event["fingerprint"] == ["{{ default }}", "fails"]
    assert event["user"] == {"id": "acme"}
    assert event["tags"] == {"fairque.task": "fails", "fairque.queue": "default", "fairque.user_id": "acme"}
    facts = {"type": "fairque", "queue": "default", "task_id": result.id, "attempt": 1, "retries_left": 0}
    assert event["contexts"]["fairque"] == {key: facts[key] for key in facts if key != "type"}
    assert "no credit" not in str(event.get("extra"))
    (transaction,) = sent.transactions
    assert transaction["contexts"]["trace"]["status"] == "internal_error"


async def test_errors_of_an_async_worker_are_reported_to_sentry(sent: Sent) -> None:
    await declare(is_async=True).aenqueue()
    await declare("other").aenqueue()
    await AsyncWorker(burst=True, concurrency=2).run()
    assert sorted(event["transaction"] for event in sent.events) == ["fails", "other"]
    await aclose_queues()


def test_retry_and_discard_are_not_reported(sent: Sent) -> None:
    @task(name="asks")
    def asks(what: str) -> None:
        raise Retry(60) if what == "retry" else Discard("no")

    asks.enqueue("retry")
    asks.enqueue("discard")
    work()
    assert sent.events == []
    assert [transaction["contexts"]["trace"]["status"] for transaction in sent.transactions] == ["ok", "ok"]


@pytest.mark.parametrize("report_retried", [True, False])
def test_a_failure_with_a_retry_is_reported_as_configured(start_sentry: StartSentry, report_retried: bool) -> None:
    sent = start_sentry(integration=FairqueIntegration(report_retried=report_retried))
    result = declare(max_retries=1).enqueue()
    while len(result.errors) < 2:
        work()
    expected = ["warning", "error"] if report_retried else ["error"]
    assert [event["level"] for event in sent.events] == expected
    assert {event["transaction"] for event in sent.events} == {"fails"}
    assert len({tuple(event["fingerprint"]) for event in sent.events}) == 1


def test_a_payload_handler_s_error_is_a_warning_until_the_last_attempt(sent: Sent, settings: Settings) -> None:
    settings.FAIRQUE = {**settings.FAIRQUE, "WORKER": {"HANDLER": f"{__name__}.refuse"}}
    get_queue().push(Task.create("acme", 3, {"n": 1}, max_retries=1))
    while len(sent.events) < 2:
        work()
    assert [event["level"] for event in sent.events] == ["warning", "error"]


def refuse(payload: Any) -> None:
    raise ValueError(f"no use for {payload}")


def test_an_error_without_a_retry_is_reported_as_an_error(sent: Sent) -> None:
    declare(max_retries=5, retry_on=(OSError,)).enqueue()
    work()
    assert sent.event["level"] == "error"


def test_the_last_error_is_reported_when_the_backoff_ends_the_retries(sent: Sent) -> None:
    declare(max_retries=5, backoff=lambda _retries, _error: None).enqueue()
    work()
    first, last = sent.events
    assert (first["level"], last["level"]) == ("warning", "error")
    assert "ValueError: no credit" in str(last["logentry"])
    assert last["fingerprint"] == ["fairque", "fails", "ValueError"]


@pytest.mark.parametrize(("user", "shown"), [("id", "acme"), (None, None), ("hash", "")])
def test_sentry_events_show_the_user_as_configured(start_sentry: StartSentry, user: Any, shown: str | None) -> None:
    integration = FairqueIntegration(user=user)
    sent = start_sentry(integration=integration)
    with as_user("acme"):
        declare().enqueue()
    work()
    shown = integration.user_name("acme") if shown == "" else shown
    assert sent.event.get("user") == (None if shown is None else {"id": shown})
    assert sent.event["tags"].get("fairque.user_id") == shown
    assert user == "id" or "acme" not in str(sent.items)
    if user == "hash":
        assert shown is not None
        assert len(shown) == 16
        assert integration.user_name("globex") != shown


def test_an_unknown_option_for_users_is_refused() -> None:
    with pytest.raises(ValueError, match='expected "id", "hash" or None, got \'name\''):
        FairqueIntegration(user="name")  # type: ignore[arg-type]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_time_limit_is_one_sentry_issue_wherever_it_is_raised(sent: Sent, is_async: bool) -> None:
    def long() -> None:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            time.sleep(0.01)

    async def along() -> None:
        await asyncio.sleep(20)

    task(name="long", timeout=0.05, max_retries=0)(along if is_async else long).enqueue()
    work()
    event = sent.event
    assert event["exception"]["values"][-1]["type"] == "SoftTimeLimitExceeded"
    assert event["fingerprint"] == ["SoftTimeLimitExceeded", "long"]
    assert frames_of(event)[0] == ("along" if is_async else "long")


def test_a_failure_without_an_exception_in_the_task_is_reported_from_the_log(sent: Sent) -> None:
    @task(name="unserializable")
    def unserializable() -> object:
        return object()

    result = unserializable.using(user_id="acme").enqueue()
    work()
    event = sent.event
    assert event["transaction"] == "unserializable"
    assert event["fingerprint"][:2] == ["fairque", "unserializable"]
    assert event["fingerprint"][2].endswith("TaskSerializationError")
    assert event["user"] == {"id": "acme"}
    assert event["extra"]["task_id"] == result.id


@pytest.mark.parametrize("user", [None, "hash"])
def test_the_log_in_sentry_names_no_user(start_sentry: StartSentry, user: Any) -> None:
    sent = start_sentry(integration=FairqueIntegration(user=user))

    @task(name="unserializable")
    def unserializable() -> object:
        return object()

    for user_id in ("acme", "globex"):
        unserializable.using(user_id=user_id).enqueue()
    work()
    assert len(sent.events) == 2
    assert "acme" not in str(sent.items)
    assert "globex" not in str(sent.items)


def test_other_log_lines_are_reported_to_sentry_as_before(sent: Sent) -> None:
    import logging

    logging.getLogger("shop").error("the shop is closed")
    logging.getLogger("django_fairque.worker").error("the worker is tired")
    assert [event["logentry"]["message"] for event in sent.events] == ["the shop is closed", "the worker is tired"]


def test_tags_and_breadcrumbs_do_not_pass_from_one_task_to_another(sent: Sent) -> None:
    ready = threading.Barrier(2, timeout=10)

    @task(name="leaves", max_retries=0)
    def leaves(tenant: str) -> None:
        sentry_sdk.set_tag("who", tenant)
        sentry_sdk.set_tag(tenant, "yes")
        sentry_sdk.add_breadcrumb(category="who", message=tenant)
        ready.wait()
        charge()

    @task(name="aleaves", max_retries=0)
    async def aleaves(tenant: str) -> None:
        sentry_sdk.set_tag("who", tenant)
        sentry_sdk.set_tag(tenant, "yes")
        sentry_sdk.add_breadcrumb(category="who", message=tenant)
        await asyncio.sleep(0.05)
        await asyncio.to_thread(charge)

    for tenant in ("acme", "globex"):
        leaves.using(user_id=tenant).enqueue(tenant)
        aleaves.using(user_id=tenant).enqueue(tenant)
    work()
    assert len(sent.events) == 4
    for event in sent.events:
        tenant = event["user"]["id"]
        other = {"acme": "globex", "globex": "acme"}[tenant]
        assert (event["tags"]["who"], event["tags"][tenant]) == (tenant, "yes")
        assert [crumb["message"] for crumb in event["breadcrumbs"]["values"] if crumb["category"] == "who"] == [tenant]
        assert [path for path in paths_of(event, other) if "_context." not in path] == []  # this file has the name


@pytest.mark.parametrize("users", [["acme", "acme"], ["acme", "globex"]])
def test_an_error_of_a_batch_names_the_user_if_all_items_belong_to_that_user(sent: Sent, users: list[str]) -> None:
    @task(name="batch", batch=5, batch_wait=0.2, max_retries=0)
    def batch(items: list[int]) -> None:
        charge()

    results = [batch.using(user_id=user).enqueue(n) for n, user in enumerate(users)]
    work()
    is_of_one = len(set(users)) == 1
    assert sent.event.get("user") == ({"id": "acme"} if is_of_one else None)
    assert sent.event["tags"].get("fairque.user_id") == ("acme" if is_of_one else None)
    assert sent.event["contexts"]["fairque"]["task_ids"] == [result.id for result in results]


def test_an_error_of_an_eager_task_is_reported_without_the_request_s_breadcrumbs(sent: Sent) -> None:
    sentry_sdk.add_breadcrumb(category="request", message="of the request")
    with eager(), pytest.raises(ValueError, match="no credit"):
        declare().enqueue()
    assert sent.event["transaction"] == "fails"
    assert "of the request" not in str(sent.event["breadcrumbs"]["values"])


def test_a_task_without_a_sentry_client_reports_no_event(sent: Sent) -> None:
    sentry_sdk.get_global_scope().set_client(None)
    result = declare().enqueue()
    work()
    assert sent.items == []
    assert len(result.errors) == 1


def test_a_task_does_not_fail_because_of_sentry(sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a mistake in sentry-sdk")

    @task(name="works")
    def works() -> str:
        return "done"

    for name in ("continue_trace", "get_traceparent"):
        monkeypatch.setattr(sentry_sdk, name, broken)
    result = works.enqueue()
    work()
    assert result.result() == "done"


def test_an_error_that_the_task_reported_is_not_reported_twice(sent: Sent) -> None:
    @task(name="reports", max_retries=0)
    def reports() -> None:
        try:
            charge()
        except ValueError as error:
            sentry_sdk.capture_exception(error)
            raise

    reports.enqueue()
    work()
    assert len(sent.events) == 1
