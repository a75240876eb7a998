"""When a task is sent that was enqueued inside a database transaction."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connection, transaction
from django.test import TestCase

from django_fairque import (
    BacklogFullError,
    FairQueueError,
    RedisConnectionError,
    TaskNotFinishedError,
    TaskNotFoundError,
    TaskResult,
    TaskState,
    TaskUsageError,
    get_queue,
    task,
)
from django_fairque.conf import aclose_queues
from django_fairque.models import OutboxEntry
from django_fairque.testing import capture_tasks
from tests.fixture_types import FairQueue, MakeServer, Redis, Server, Settings

if TYPE_CHECKING:
    from pytest_django import DjangoCaptureOnCommitCallbacks


in_transactions = pytest.mark.django_db(transaction=True)


def enqueue(n: Any = 0, *, customer: str = "acme", **options: Any) -> TaskResult:
    @task(name="work", user="customer")
    def work(customer: str, n: Any) -> None: ...

    return work.using(**options).enqueue(customer, n)


def pushes(redis: Redis) -> int:
    """Script calls since `config_resetstat`; a script that the server did not know is called again."""
    stats = redis.info("commandstats")
    called = [int(stats.get(f"cmdstat_{name}", {}).get("calls", 0)) for name in ("fcall", "evalsha", "eval")]
    return sum(called) - int(stats.get("cmdstat_fcall", {}).get("failed_calls", 0))


def arrived(queue: FairQueue) -> list[Any]:
    return [lease.payload["args"][1] for lease in queue.pop_batch(1000, "w")]


@in_transactions
def test_a_transaction_sends_when_it_commits(queue: FairQueue) -> None:
    with transaction.atomic():
        result = enqueue()
        sent_id = result.id
        assert result.state is None
        assert queue.get_queue_sizes("acme").ready == 0
    assert result.state is TaskState.QUEUED
    assert result.id == sent_id


in_both_databases = pytest.mark.django_db(transaction=True, databases=["default", "other"])


@in_both_databases
def test_a_transaction_of_another_database_sends_when_it_commits(queue: FairQueue) -> None:
    with transaction.atomic(using="other"):
        result = enqueue(1)
        with pytest.raises(ZeroDivisionError), transaction.atomic(using="other"):  # noqa: PT012
            lost = enqueue(2)
            raise ZeroDivisionError
        assert result.state is None
    assert arrived(queue) == [1]
    assert lost.state is None
    enqueue(3)
    assert arrived(queue) == [3]


@in_both_databases
async def test_a_transaction_of_another_database_sends_tasks_of_coroutines(queue: FairQueue) -> None:
    @task(name="work")
    def work(customer: str, n: int) -> None: ...

    @sync_to_async
    def begin_and_commit() -> None:
        with transaction.atomic(using="other"):
            async_to_sync(work.aenqueue)("acme", 1)
            assert arrived(queue) == []

    await begin_and_commit()
    assert await sync_to_async(arrived)(queue) == [1]
    await aclose_queues()


@in_both_databases
@pytest.mark.parametrize(("options", "waits_for"), [({}, "default"), ({"database": "other"}, "other")])
def test_the_default_transaction_counts_unless_a_call_names_another(
    queue: FairQueue, options: dict[str, Any], waits_for: str
) -> None:
    with transaction.atomic(), transaction.atomic(using="other"):
        result = enqueue(1, **options)
        with pytest.raises(TaskNotFinishedError, match=f"database '{waits_for}' commits"):
            result.result()
    assert arrived(queue) == [1]


@in_both_databases
def test_a_captured_task_is_part_of_the_same_transaction() -> None:
    with capture_tasks() as captured, pytest.raises(ZeroDivisionError), transaction.atomic(using="other"):  # noqa: PT012
        enqueue(1)
        assert len(captured) == 1
        raise ZeroDivisionError
    assert len(captured) == 0


@in_transactions
def test_a_rollback_sends_no_task_and_writes_no_key(queue: FairQueue, redis: Redis) -> None:
    with pytest.raises(ZeroDivisionError), transaction.atomic():  # noqa: PT012
        result = enqueue()
        raise ZeroDivisionError
    assert redis.dbsize() == 0
    assert result.state is None
    with pytest.raises(TaskNotFinishedError, match="database 'default' commits; it has not, or it was rolled back"):
        result.result()


@in_transactions
def test_a_savepoint_that_is_rolled_back_drops_only_its_own_tasks(queue: FairQueue) -> None:
    with transaction.atomic():
        first = enqueue(1)
        with pytest.raises(ZeroDivisionError), transaction.atomic():  # noqa: PT012
            lost = enqueue(2)
            raise ZeroDivisionError
        with transaction.atomic():
            inner = enqueue(3)
        last = enqueue(4)
    assert arrived(queue) == [1, 3, 4]
    assert lost.state is None
    assert {first.state, inner.state, last.state} == {TaskState.STARTED}


@in_transactions
def test_an_outer_savepoint_that_is_rolled_back_drops_tasks_of_inner_ones(queue: FairQueue) -> None:
    with transaction.atomic():
        enqueue(1)
        with pytest.raises(ZeroDivisionError), transaction.atomic():  # noqa: PT012
            with transaction.atomic():
                enqueue(2)
            enqueue(3)
            raise ZeroDivisionError
        enqueue(4)
    assert arrived(queue) == [1, 4]


class TestCalls:
    @pytest.fixture
    def server(self, make_server: MakeServer) -> Server:
        """One that nobody else calls."""
        return make_server()

    @in_transactions
    def test_a_transaction_makes_one_call_per_queue(self, queue: FairQueue, redis: Redis, settings: Settings) -> None:
        settings.FAIRQUE = {**settings.FAIRQUE, "QUEUES": {"mail": {}}}
        get_queue("mail").is_paused()
        redis.config_resetstat()
        with transaction.atomic():
            for n in range(100):
                enqueue(n, queue=("default", "mail")[n % 2])
        assert pushes(redis) == 2
        assert arrived(get_queue()) == list(range(0, 100, 2))
        assert arrived(get_queue("mail")) == list(range(1, 100, 2))


@in_transactions
def test_hooks_of_a_commit_run_in_their_order(queue: FairQueue) -> None:
    seen: list[int] = []
    with transaction.atomic():
        enqueue(1)
        transaction.on_commit(lambda: seen.append(queue.get_queue_sizes("acme").ready))
        enqueue(2)
    assert seen == [1]
    assert arrived(queue) == [1, 2]


@in_transactions
@pytest.mark.parametrize("hidden", ["run_on_commit", "savepoint_ids", "atomic_blocks"])
def test_tasks_are_sent_without_hooks_of_django(queue: FairQueue, monkeypatch: pytest.MonkeyPatch, hidden: str) -> None:
    from django_fairque.tasks.transactions import commit_buffer

    class Hiding:
        def __init__(self, connection: Any) -> None:
            self.connection = connection

        def __getattr__(self, name: str) -> Any:
            if name == hidden:
                raise AttributeError(name)
            return getattr(self.connection, name)

    own = commit_buffer.get_connection
    monkeypatch.setattr(commit_buffer, "get_connection", lambda alias: Hiding(own(alias)))
    with transaction.atomic():
        results = [enqueue(n) for n in range(3)]
    assert arrived(queue) == [0, 1, 2]
    assert {result.state for result in results} == {TaskState.STARTED}


@in_transactions
def test_a_later_change_of_an_argument_changes_nothing(queue: FairQueue) -> None:
    order = {"lines": [1]}
    with transaction.atomic():
        enqueue(order)
        order["lines"].append(2)
    assert arrived(queue) == [{"lines": [1]}]


@in_transactions
def test_a_bad_call_fails_at_the_call_not_at_the_commit(queue: FairQueue, redis: Redis) -> None:
    with transaction.atomic():
        with pytest.raises(TaskUsageError):
            enqueue({1, 2}, unknown=3)
        with pytest.raises(ValueError, match="not JSON"):
            enqueue({1, 2})
    assert redis.dbsize() == 0


@in_transactions
def test_on_commit_can_be_turned_off(queue: FairQueue, settings: Settings) -> None:
    with transaction.atomic():
        assert enqueue(on_commit=False).state is TaskState.QUEUED
        settings.FAIRQUE = {**settings.FAIRQUE, "ENQUEUE_ON_COMMIT": False}
        assert enqueue().state is TaskState.QUEUED
        assert enqueue(on_commit=True).state is None


@in_transactions
def test_a_duplicate_has_the_id_of_the_existing_task(queue: FairQueue) -> None:
    first = enqueue(unique_for=60)
    with transaction.atomic():
        second = enqueue(unique_for=60)
    assert second.id == first.id


@in_transactions
def test_a_task_that_waits_for_a_commit_can_be_canceled(queue: FairQueue) -> None:
    with transaction.atomic():
        result, kept = enqueue(1), enqueue(2)
        assert result.cancel() is True
    assert result.state is None
    assert arrived(queue) == [2]
    assert kept.cancel() is True


@in_transactions
def test_waiting_for_a_task_that_is_not_sent_is_an_error(queue: FairQueue) -> None:
    with transaction.atomic():
        result = enqueue()
        with pytest.raises(TaskNotFinishedError, match="is sent when the transaction on database 'default' commits"):
            result.wait()


@in_transactions
def test_a_server_that_is_gone_at_commit_is_an_error_with_the_ids(
    queue: FairQueue, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    settings.FAIRQUE = {"REDIS": {"URL": "unix:///nonexistent/s.sock"}, "QUEUE": {"REQUEST_TIMEOUT": 0}}
    with pytest.raises(RedisConnectionError), transaction.atomic():
        results = [enqueue(), enqueue()]
    assert all(result.id in caplog.text for result in results)


@in_transactions
def test_a_task_refused_at_the_commit_does_not_hold_back_others(
    queue: FairQueue, redis: Redis, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    settings.FAIRQUE = {**settings.FAIRQUE, "QUEUES": {"mail": {}}}
    get_queue().user("full").set_max_backlog(1)
    with pytest.raises(BacklogFullError), transaction.atomic():  # noqa: PT012
        results = [enqueue(n, customer="full") for n in range(2)]
        results += [enqueue(2), enqueue(3, queue="mail")]
    assert [result.state for result in results] == [TaskState.QUEUED, None, TaskState.QUEUED, TaskState.QUEUED]
    assert results[1].id in caplog.text
    assert results[2].id not in caplog.text
    redis.flushall()
    with pytest.raises(TaskNotFoundError, match="forgotten"):
        results[0].result()
    with pytest.raises(TaskNotFinishedError, match="the server refused"):
        results[1].result()


@in_transactions
def test_an_unknown_database_is_named(queue: FairQueue) -> None:
    with pytest.raises(TaskUsageError, match="expected one of 'default', 'other', got 'defautl'"):
        enqueue(database="defautl")


@in_transactions
def test_enqueue_without_autocommit_is_refused(queue: FairQueue, redis: Redis) -> None:
    transaction.set_autocommit(False)
    try:
        with pytest.raises(TaskUsageError, match="autocommit of database 'default' is off"):
            enqueue()
        assert redis.dbsize() == 0
        assert enqueue(on_commit=False).state is TaskState.QUEUED
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)


@in_transactions
@pytest.mark.parametrize("outbox", [False, True])
def test_with_autocommit_off_permanently_enqueue_needs_the_outbox(
    queue: FairQueue, settings: Settings, monkeypatch: pytest.MonkeyPatch, outbox: bool
) -> None:
    settings.FAIRQUE = {**settings.FAIRQUE, "OUTBOX": outbox}
    monkeypatch.setitem(connection.settings_dict, "AUTOCOMMIT", value=False)
    transaction.set_autocommit(False)
    try:
        with nullcontext() if outbox else pytest.raises(TaskUsageError, match="outbox"), transaction.atomic():
            enqueue()
        transaction.commit()
        assert OutboxEntry.objects.count() == outbox
    finally:
        OutboxEntry.objects.all().delete()
        transaction.commit()
        transaction.set_autocommit(True)


@in_transactions
def test_a_coroutine_inside_a_transaction_waits_for_its_commit(queue: FairQueue) -> None:
    async def send() -> TaskResult:
        @task(name="other")
        async def work() -> None: ...

        result = await work.aenqueue()
        assert await result.astate() is None
        await aclose_queues()
        return result

    with transaction.atomic():
        result = async_to_sync(send)()
    assert result.state is TaskState.QUEUED


@in_transactions
def test_tasks_of_a_coroutine_s_synchronous_part_are_sent_at_the_commit(queue: FairQueue) -> None:
    def save() -> TaskResult:
        with transaction.atomic():
            result = enqueue()
            assert result.state is None
        connection.close()  # the thread's own
        return result

    async def view() -> TaskState | None:
        result = await sync_to_async(save)()
        state = await result.astate()
        await aclose_queues()
        return state

    assert asyncio.run(view()) is TaskState.QUEUED


class TestInsideATestCase:
    """Its transaction never commits; tests run the hooks of a moment themselves."""

    pytestmark = pytest.mark.django_db

    def test_a_captured_hook_sends_only_tasks_of_its_capture(
        self, queue: FairQueue, django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks
    ) -> None:
        enqueue(1)
        with django_capture_on_commit_callbacks(execute=True):
            enqueue(2)
        assert arrived(queue) == [2]
        with django_capture_on_commit_callbacks(execute=True):
            enqueue(3)
        assert arrived(queue) == [3]

    def test_a_block_inside_of_a_test_case_is_sent_at_once(
        self, queue: FairQueue, django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks
    ) -> None:
        with django_capture_on_commit_callbacks(execute=True) as callbacks, transaction.atomic():
            enqueue(1)
            enqueue(2)
        assert len(callbacks) == 1
        assert arrived(queue) == [1, 2]

    def test_captured_hooks_are_not_reused(self, queue: FairQueue) -> None:
        with transaction.atomic():
            with TestCase.captureOnCommitCallbacks(execute=True):
                enqueue(1)
            with TestCase.captureOnCommitCallbacks(execute=True):
                enqueue(2)
        assert arrived(queue) == [1, 2]


@in_transactions
def test_blocks_without_a_savepoint_are_one_push(queue: FairQueue, redis: Redis) -> None:
    """As Django opens them itself around what has several statements."""
    with transaction.atomic():
        for n in range(3):
            enqueue(n)
            with transaction.atomic(savepoint=False):
                enqueue(f"inner {n}")
        redis.config_resetstat()
    assert pushes(redis) == 1
    assert arrived(queue) == [0, "inner 0", 1, "inner 1", 2, "inner 2"]


@in_transactions
@pytest.mark.parametrize("outbox", [False, True])
def test_mistakes_of_tasks_are_raised_before_the_commit(queue: FairQueue, settings: Settings, outbox: bool) -> None:
    settings.FAIRQUE = {**settings.FAIRQUE, "OUTBOX": outbox}
    with transaction.atomic():
        with pytest.raises(FairQueueError, match="tasks would wait for each other: a → a"):
            enqueue(1, task_id="a", depends_on=["a"])
        with pytest.raises(FairQueueError, match="payload takes 300,032 bytes, the limit is 262,144"):
            enqueue("x" * 300_000)
        enqueue(2)
    assert arrived(queue) == [2]
