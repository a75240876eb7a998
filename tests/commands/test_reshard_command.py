"""``fairque_reshard``, as an operator uses it."""

from __future__ import annotations

import pytest
from django.core.management import CommandError

from django_fairque.conf import close_queues, get_queue
from tests.fixture_types import FairQueue, Settings

from .conftest import Push, Run


def test_a_drained_queue_gets_more_shards(run: Run, queue: FairQueue, settings: Settings) -> None:
    queue.user("acme").set_weight(3)
    printed = run("fairque_reshard", "--shards", "3")
    assert "lies on 3 shards now (before: 1)" in printed
    assert "set SHARDS to 3 before anybody uses it again" in printed
    settings.FAIRQUE = {**settings.FAIRQUE, "QUEUE": {"SHARDS": 3}}
    close_queues()
    assert get_queue().user("acme").stats().weight == 3
    assert "already; nothing was changed" in run("fairque_reshard", "--shards", "3")


def test_a_queue_that_is_not_drained_keeps_its_shards(run: Run, push: Push) -> None:
    push()
    with pytest.raises(CommandError, match="can't be moved to other shards yet: 1 task is queued"):
        run("fairque_reshard", "--shards", "3")
