from __future__ import annotations

import pytest

from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import NOW, push_many, task

from .making import join, members


@pytest.fixture
def crowd(queue: FairQueue) -> FairQueue:
    """An organization of 100 users beside one user, each with plenty to do."""
    join(queue, "crowd", *members("crowd", 100))
    queue.push_batch([task(user) for user in members("crowd", 100) for _ in range(30)], now=NOW)
    push_many(queue, "alone", 1500)
    return queue
