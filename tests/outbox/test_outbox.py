"""With an outbox a task is in the database before it is in its queue, and afterwards only there."""

from __future__ import annotations

import logging
import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from django.core.management import call_command
from django.db import DatabaseError, OperationalError, connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_fairque import Priority, TaskResult, TaskState, get_queue, lane, task
from django_fairque.engine.model.signature import DEFAULT_KEY
from django_fairque.models import OutboxEntry
from django_fairque.outbox import relay
from django_fairque.outbox import rows as outbox_rows
from django_fairque.outbox.relay import relay_rows
from django_fairque.signals import task_pushed

from .conftest import arrived, enqueue, rows

if TYPE_CHECKING:
    from pytest_django import Settings
    from redis import Redis

    from django_fairque.engine.queue.queue import FairQueue
    from tests.conftest import MakeServer
    from tests.servers import Server

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def down(server: Server, settings: Settings, redis: Redis) -> dict[str, Any]:
    """The settings of a server that can't be reached; `up` of it is those of one that can."""
    up = {"REDIS": {"URL": server.url}, "OUTBOX": True}
    settings.FAIRQUE = {**up, "REDIS": {"URL": "unix:///nowhere/at/all.sock"}, "QUEUE": {"REQUEST_TIMEOUT": 0.05}}
    return up


class TestTransaction:
    def test_a_row_is_removed_after_the_commit(self, queue: FairQueue) -> None:
        with transaction.atomic():
            result = enqueue(1)
            (row,) = rows()
            assert (row.queue, row.user_id, row.name, row.task_id) == ("default", "acme", "work", result.id)
            assert result.state is None
        assert rows() == []
        assert result.state is TaskState.QUEUED
        assert arrived(queue) == [1]

    def test_calls_that_are_spread_over_a_length_of_time_count_from_the_commit(self, queue: FairQueue) -> None:
        @task(name="work", user="customer")
        def work(customer: str) -> None: ...

        with transaction.atomic():
            results = work.enqueue_many([(("acme",), {}) for _ in range(3)], over=timedelta(hours=1))
            assert len(rows()) == 3
        assert rows() == []
        tasks = [queue.get_task(result.id) for result in results]
        delays = [(found.execute_after or found.created_at) - found.created_at for found in tasks]
        assert delays == [0, pytest.approx(1200, abs=5), pytest.approx(2400, abs=5)]

    def test_a_row_of_the_outbox_keeps_the_lane_of_its_task(self, queue: FairQueue) -> None:
        with transaction.atomic():
            result = enqueue(1, lane="urgent")
            with lane("bulk"):
                other = enqueue(2)
            assert [task.lane for row in rows() for task in outbox_rows.decode(row)] == ["urgent", "bulk"]
        assert [queue.get_task(result.id).lane, queue.get_task(other.id).lane] == ["urgent", "bulk"]

    def test_a_priority_that_stands_for_a_lane_counts_when_the_row_is_sent(
        self, queue: FairQueue, settings: Settings
    ) -> None:
        settings.FAIRQUE = {**settings.FAIRQUE, "QUEUE": {"LANES": {"URGENT_PRIORITY": "CRITICAL"}}}
        with transaction.atomic():
            result = enqueue(1, priority=Priority.CRITICAL)
        assert queue.get_task(result.id).lane == "urgent"

    def test_a_rollback_removes_the_row_and_sends_no_task(self, queue: FairQueue, redis: Redis) -> None:
        with pytest.raises(ZeroDivisionError), transaction.atomic():  # noqa: PT012
            enqueue(1)
            raise ZeroDivisionError
        assert rows() == []
        assert redis.dbsize() == 0

    def test_a_lost_savepoint_drops_only_its_own_rows(self, queue: FairQueue) -> None:
        with transaction.atomic():
            enqueue(1)
            with pytest.raises(ZeroDivisionError), transaction.atomic():  # noqa: PT012
                enqueue(2)
                raise ZeroDivisionError
            enqueue(3)
        assert arrived(queue) == [1, 3]
        assert rows() == []

    def test_a_task_enqueued_outside_of_a_transaction_writes_no_row(self, queue: FairQueue) -> None:
        with_rows: list[int] = []
        task_pushed.connect(receiver := lambda **_: with_rows.append(len(rows())))
        enqueue(1)
        task_pushed.disconnect(receiver)
        assert with_rows == [0]

    def test_a_row_of_the_outbox_keeps_all_options_of_a_task(self, queue: FairQueue) -> None:
        with transaction.atomic():
            result = enqueue(
                {"ü": [1.5, None, "\x00"]}, priority=6, delay=60, timeout=5, sla=9, max_retries=7, task_id="mine"
            )
            (row,) = rows()
            (made,) = outbox_rows.decode(row)
        stored = queue.get_task("mine")
        assert result.id == "mine"
        assert made.has_chosen_id
        for name in ("user_id", "priority", "payload", "name", "max_retries", "timeout", "sla"):
            assert getattr(made, name) == getattr(stored, name), name
        assert (made.delay, made.execute_after) == (60, None)
        assert stored.priority is Priority.CRITICAL
        assert stored.payload["args"][1] == {"ü": [1.5, None, "\x00"]}

    def test_a_duplicate_returns_the_id_of_the_first_task(self, queue: FairQueue) -> None:
        first = enqueue(unique_for=60)
        with transaction.atomic():
            second = enqueue(unique_for=60)
        assert second.id == first.id
        assert rows() == []

    def test_a_pipeline_is_one_row_of_the_outbox(self, queue: FairQueue) -> None:
        @task(name="step")
        def step(n: int) -> None: ...

        with transaction.atomic():
            run = (step.s(1) >> (step.s(2) | step.s(3)) >> step.s(4)).enqueue()
            assert len(rows()) == 1
        assert len(queue.run(run.id).tasks) == 4
        assert rows() == []


class TestCost:
    @pytest.fixture
    def server(self, make_server: MakeServer) -> Server:
        """One that nobody else calls."""
        return make_server()

    def test_many_tasks_in_a_transaction_cost_few_statements_and_one_call(self, queue: FairQueue, redis: Redis) -> None:
        @task(name="many", user="customer")
        def many(customer: str, n: int) -> None: ...

        with transaction.atomic():
            many.enqueue("acme", -1)  # the first task loads the functions
        redis.config_resetstat()
        with CaptureQueriesContext(connection) as statements, transaction.atomic():
            many.enqueue_many([(("acme", n), {}) for n in range(50)])
        kinds = [query["sql"].split()[0] for query in statements.captured_queries]
        assert [kind for kind in kinds if kind not in ("BEGIN", "COMMIT")] == ["INSERT", "SELECT", "DELETE"]
        assert redis.info("commandstats")["cmdstat_fcall"]["calls"] == 2
        assert [lease.payload["args"][1] for lease in queue.pop_batch(100, "w")] == list(range(-1, 50))


class TestServerDown:
    def test_a_commit_succeeds_and_keeps_its_row_while_the_server_is_down(
        self, down: dict[str, Any], settings: Settings, caplog: pytest.LogCaptureFixture
    ) -> None:
        with transaction.atomic():
            result = enqueue(1)
        (row,) = rows()
        assert row.attempts == 1
        assert "can't be reached" in row.last_error
        assert "tasks stay in the outbox" in caplog.text
        settings.FAIRQUE = down
        assert relay_rows("default").tasks == 1
        assert rows() == []
        assert result.state is TaskState.QUEUED

    def test_a_commit_with_an_outbox_waits_for_no_dead_server(self, down: dict[str, Any], settings: Settings) -> None:
        """Without an outbox the commit waits, because a task would be lost; here the row is safe."""
        settings.FAIRQUE = {**settings.FAIRQUE, "QUEUE": {"REQUEST_TIMEOUT": 5}}
        with transaction.atomic():
            enqueue(1)
        attempts = re.search(r"\((\d+) attempts\)", rows()[0].last_error)
        assert attempts is not None
        assert int(attempts[1]) < 10, "in 5 s there are 20"

    def test_the_outbox_keeps_the_order_of_a_user_s_tasks(self, down: dict[str, Any], settings: Settings) -> None:
        with transaction.atomic():
            enqueue(1)
        settings.FAIRQUE = down
        with transaction.atomic():
            enqueue(2)  # the second commit also sends the first task
        assert rows() == []
        assert arrived(get_queue()) == [1, 2]

    def test_a_task_that_can_not_be_sent_delays_no_other_user(self, down: dict[str, Any], settings: Settings) -> None:
        with transaction.atomic():
            enqueue(1)
        settings.FAIRQUE = down
        with transaction.atomic():
            enqueue(2, customer="other")
        assert [row.user_id for row in rows()] == ["acme"]


class TestRelay:
    @staticmethod
    def left_behind(*ns: Any, customer: str = "acme", **options: Any) -> list[TaskResult]:
        """Rows as a process leaves them that dies right after its commit."""
        with transaction.atomic():
            results = [enqueue(n, customer=customer, **options) for n in ns]
            transaction.get_connection().run_on_commit.clear()
        return results

    def test_rows_are_relayed_in_the_order_in_which_they_were_written(self, queue: FairQueue) -> None:
        self.left_behind(*range(20))
        assert relay_rows("default").tasks == 20
        assert arrived(queue) == list(range(20))

    def test_a_row_that_is_relayed_twice_makes_one_task(self, queue: FairQueue) -> None:
        self.left_behind(1, 2)
        copies = rows()
        assert relay_rows("default").tasks == 2
        assert arrived(queue) == [1, 2]
        OutboxEntry.objects.bulk_create(copies)  # the other one had read them before
        assert relay_rows("default").tasks == 2
        assert rows() == []
        assert arrived(queue) == []

    def test_a_relay_that_dies_before_it_removes_a_row_makes_no_second_task(
        self, queue: FairQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.left_behind(1, task_id="mine")
        with monkeypatch.context() as patch:
            patch.setattr(relay._Relay, "_remove", lambda *_: (_ for _ in ()).throw(SystemExit))
            with pytest.raises(SystemExit):
                relay_rows("default")
        assert arrived(queue) == [1]
        assert relay_rows("default").tasks == 1
        assert rows() == []
        assert arrived(queue) == []

    def test_a_relay_sends_a_bounded_number_of_rows(self, queue: FairQueue, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(relay, "MAX_ROWS_PER_RELAY", 3)
        self.left_behind(1, 2, 3, 4)
        first = relay_rows("default")
        assert (first.tasks, first.more) == (3, True)
        assert (relay_rows("default").tasks, relay_rows("default").more) == (1, False)
        assert arrived(queue) == [1, 2, 3, 4]

    def test_a_relay_reports_rows_that_were_not_due(self, queue: FairQueue, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(relay, "MAX_ROWS_PER_RELAY", 3)
        self.left_behind(1, 2, 3, 4)
        OutboxEntry.objects.filter(pk=rows()[0].pk).update(retry_at=timezone.now() + timedelta(hours=1), is_stuck=True)
        first = relay_rows("default", {"acme"})
        assert (first.tasks, first.more) == (2, True)
        assert (relay_rows("default", {"acme"}).tasks, arrived(queue)) == (1, [2, 3, 4])

    def test_young_rows_are_left_to_the_process_that_wrote_them(self, queue: FairQueue) -> None:
        self.left_behind(1)
        assert relay_rows("default", minimum_age=5).tasks == 0
        assert relay_rows("default", minimum_age=5, now=timezone.now() + timedelta(seconds=6)).tasks == 1

    def test_rows_read_long_ago_are_read_again(self, queue: FairQueue, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left_behind(1)
        times = iter([0.0, relay.STALE_ROWS_SECONDS + 1])
        monkeypatch.setattr(relay, "monotonic", lambda: next(times))
        stale = relay_rows("default")
        assert (stale.tasks, stale.more) == (0, True)

    def test_the_push_signal_is_sent_when_the_queue_has_the_task(self, queue: FairQueue) -> None:
        received = []
        task_pushed.connect(receiver := lambda task, **_: received.append(task.payload["args"][1]))
        with transaction.atomic():
            enqueue(1)
            assert received == []
        task_pushed.disconnect(receiver)
        assert received == [1]


class TestRefused:
    def test_a_full_backlog_of_a_user_lets_only_rows_of_that_user_wait(
        self, queue: FairQueue, settings: Settings, server: Server
    ) -> None:
        settings.FAIRQUE = {**settings.FAIRQUE, "QUEUE": {"MAX_BACKLOG": 1}}
        with transaction.atomic():
            enqueue(1)
            enqueue(2)
            enqueue(3)
            enqueue("else", customer="other")
        assert [row.attempts for row in rows()] == [1, 0]
        waiting = rows()[0]
        assert "backlog of user 'acme' is full" in waiting.last_error
        assert waiting.is_stuck is False
        assert sorted(arrived(get_queue()), key=str) == [1, "else"]
        assert relay_rows("default").tasks == 0, "the first one's time has not come"
        later = timezone.now() + timedelta(seconds=relay.FIRST_RETRY_SECONDS + 1)
        assert relay_rows("default", now=later).tasks == 1
        assert arrived(get_queue()) == [2]

    def test_a_refused_row_waits_longer_after_each_attempt(self, queue: FairQueue, settings: Settings) -> None:
        settings.FAIRQUE = {**settings.FAIRQUE, "QUEUE": {"MAX_BACKLOG": 1}}
        with transaction.atomic():
            enqueue(1)
            enqueue(2)
        pauses = []
        for _ in range(8):
            (row,) = rows()
            assert row.retry_at is not None
            now = row.retry_at + timedelta(seconds=1)
            assert relay_rows("default", now=now).refused == 1
            (row,) = rows()
            assert row.retry_at is not None
            pauses.append((row.retry_at - now).total_seconds())
        assert pauses == [10, 20, 40, 80, 160, 300, 300, 300]

    @pytest.mark.parametrize(
        ("damage", "error"),
        [
            ({"tasks": "{"}, "can't be decoded"),
            ({"tasks": '[{"payload": "1"}]'}, "can't be decoded"),
            ({"queue": "undeclared"}, "queue 'undeclared' is not declared"),
        ],
    )
    def test_a_row_that_can_not_be_relayed_steps_aside(
        self, queue: FairQueue, damage: dict[str, str], error: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        TestRelay.left_behind(1, 2, 3)
        second = rows()[1]
        OutboxEntry.objects.filter(pk=second.pk).update(**damage)
        done = relay_rows("default")
        assert (done.tasks, done.refused) == (2, 1)
        assert arrived(queue) == [1, 3]
        (stuck,) = rows()
        assert stuck.pk == second.pk
        assert stuck.is_stuck
        assert error in stuck.last_error
        assert "can't be relayed" in caplog.text
        assert relay_rows("default").refused == 0, "the row is tried again, but not at once"
        mended = {"tasks": second.tasks, "queue": second.queue}
        OutboxEntry.objects.filter(pk=second.pk).update(**mended)
        assert relay_rows("default", now=timezone.now() + timedelta(minutes=1)).tasks == 1
        assert arrived(queue) == [2]

    def test_a_graph_with_an_unknown_dependency_does_not_delay_other_rows(self, queue: FairQueue) -> None:
        TestRelay.left_behind(1, depends_on=["nobody"])
        TestRelay.left_behind(2)
        done = relay_rows("default")
        assert (done.tasks, done.refused) == (1, 1)
        assert "depends on 'nobody'" in rows()[0].last_error

    def test_a_task_that_the_queue_refuses_is_found_among_others(self, queue: FairQueue, settings: Settings) -> None:
        TestRelay.left_behind(1, "x" * 5000, 3)
        settings.FAIRQUE = {**settings.FAIRQUE, "QUEUE": {"MAX_PAYLOAD_BYTES": 2000}}
        done = relay_rows("default")
        assert (done.tasks, done.refused) == (2, 1)
        assert "max_payload_bytes" in rows()[0].last_error
        assert arrived(get_queue()) == [1, 3]

    def test_a_server_out_of_memory_stops_the_round(self, make_server: MakeServer, settings: Settings) -> None:
        server = make_server()
        settings.FAIRQUE = {"REDIS": {"URL": server.url}, "OUTBOX": True, "QUEUE": {"REQUEST_TIMEOUT": 0.05}}
        get_queue().pop("w")
        TestRelay.left_behind(1)
        with server.client() as redis:
            redis.config_set("maxmemory", "1mb")
            done = relay_rows("default")
            assert "out of memory" in str(done.error)
            assert rows()[0].is_stuck is False
            redis.config_set("maxmemory", "0")
        assert relay_rows("default").tasks == 1


def test_a_missing_table_fails_where_the_task_is_enqueued(queue: FairQueue) -> None:
    call_command("migrate", "django_fairque", "zero", verbosity=0)
    try:
        with pytest.raises(DatabaseError, match="outboxentry"), transaction.atomic():
            enqueue(1)
    finally:
        call_command("migrate", "django_fairque", verbosity=0)
    assert arrived(queue) == []


def test_a_broken_outbox_does_not_break_the_commit(
    queue: FairQueue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OperationalError("gone")

    monkeypatch.setattr(relay, "_filter_due_rows", fail)
    with caplog.at_level(logging.ERROR), transaction.atomic():
        enqueue(1)
    assert "a worker will do it" in caplog.text
    assert len(rows()) == 1


def test_rows_that_an_unsigned_process_can_not_deliver_wait_for_a_signing_process(queue: FairQueue) -> None:
    queue.heartbeat("w", {}, requires_signatures=True)
    with patch.object(DEFAULT_KEY, "read", lambda: None), transaction.atomic():
        enqueue(1)
    (row,) = rows()
    assert "sign_with(key)" in row.last_error
    assert relay.relay("default").tasks == 1
    assert arrived(queue) == [1]
    assert rows() == []
