"""Tests that events of a transaction send tasks once, in one call, after the commit, and never after a rollback."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction

from django_fairque.conf import aclose_queues
from django_fairque.events import on_create, on_save
from tests.shop.models import Order

from .conftest import arrived

if TYPE_CHECKING:
    from redis import Redis

    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.tasks.definition import AnyDefinition as Work
    from tests.conftest import MakeServer
    from tests.servers import Server

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])


class TestTransactions:
    def test_no_task_is_sent_before_the_commit(self, queue: FairQueue, work: Work) -> None:
        on_create(Order).enqueue(work, "total")
        with transaction.atomic():
            Order.objects.create(total=1)
            assert queue.pop("w") is None
        assert arrived(queue) == [[1]]

    def test_a_save_that_is_rolled_back_sends_no_task(self, queue: FairQueue, work: Work, redis: Redis) -> None:
        on_save(Order).enqueue(work, "total")
        with pytest.raises(ZeroDivisionError), transaction.atomic():  # noqa: PT012
            Order.objects.create(total=1)
            raise ZeroDivisionError
        assert redis.dbsize() == 0

    def test_a_lost_savepoint_drops_only_its_own_events(self, queue: FairQueue, work: Work) -> None:
        on_create(Order).enqueue(work, "total")
        with transaction.atomic():
            Order.objects.create(total=1)
            with pytest.raises(ZeroDivisionError), transaction.atomic():  # noqa: PT012
                Order.objects.create(total=2)
                raise ZeroDivisionError
            Order.objects.create(total=3)
        assert arrived(queue) == [[1], [3]]

    def test_an_event_in_a_lost_savepoint_fires_again_afterwards(self, queue: FairQueue, work: Work) -> None:
        on_save(Order).enqueue(work, "pk")
        with transaction.atomic():
            order = Order(pk=5)
            with pytest.raises(ZeroDivisionError), transaction.atomic():  # noqa: PT012
                order.save()
                raise ZeroDivisionError
            order.save(force_insert=True)
        assert arrived(queue) == [[5]]

    def test_a_task_is_sent_at_the_commit_of_the_event_s_database(self, queue: FairQueue, work: Work) -> None:
        on_create(Order).enqueue(work, lambda event: event.using)
        with transaction.atomic(using="default"):
            with transaction.atomic(using="other"):
                Order.objects.using("other").create()
                Order.objects.using("default").create()
                assert queue.pop("w") is None
            assert arrived(queue) == [["other"]]
        assert arrived(queue) == [["default"]]

    def test_objects_saved_by_a_coroutine_fire_events(self, queue: FairQueue, work: Work) -> None:
        on_save(Order).enqueue(work, "total")

        async def view() -> None:
            order = await Order.objects.acreate(total=1)
            order.total = 2
            await order.asave()
            await aclose_queues()

        async_to_sync(view)()
        assert arrived(queue) == [[1], [2]]


class TestCalls:
    @pytest.fixture
    def server(self, make_server: MakeServer) -> Server:
        """One that nobody else calls."""
        return make_server()

    def test_a_hundred_saves_of_an_object_send_one_task(self, queue: FairQueue, work: Work, redis: Redis) -> None:
        on_save(Order).enqueue(work, "pk")
        order = Order.objects.create()
        arrived(queue)
        redis.config_resetstat()
        with transaction.atomic():
            for total in range(100):
                order.total = total
                order.save()
        assert redis.info("commandstats")["cmdstat_fcall"]["calls"] == 1
        assert arrived(queue) == [[order.pk]]
        count = queue.event_counts()["shop.Order:save:work"]
        assert (count.fired, count.coalesced) == (101, 99)

    def test_saves_of_a_hundred_objects_send_one_call(self, queue: FairQueue, work: Work, redis: Redis) -> None:
        on_save(Order).enqueue(work, "total")
        Order.objects.create(total=-1)
        arrived(queue)
        redis.config_resetstat()
        with transaction.atomic():
            for total in range(100):
                Order.objects.create(total=total)
        assert redis.info("commandstats")["cmdstat_fcall"]["calls"] == 1
        assert arrived(queue) == [[total] for total in range(100)]

    def test_a_transaction_s_tasks_and_events_are_one_call(self, queue: FairQueue, work: Work, redis: Redis) -> None:
        on_save(Order).enqueue(work, "total")
        Order.objects.create(total=-1)
        arrived(queue)
        redis.config_resetstat()
        with transaction.atomic():
            for total in range(3):
                Order.objects.create(total=total)
                work.enqueue("by hand", total)
        assert redis.info("commandstats")["cmdstat_fcall"]["calls"] == 1
        assert arrived(queue) == [[0], ["by hand", 0], [1], ["by hand", 1], [2], ["by hand", 2]]
