"""A part of a cluster that can be taken away."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

from django_fairque.engine.model.ids import compute_bucket
from django_fairque.engine.model.options import QueueConfig
from tests.cluster.conftest import SHARDS
from tests.cluster.six_nodes import Six

VICTIM = 3
DEADLINE = 0.5
"""Seconds for which calls are repeated in these tests, and for which one reply is waited for."""
HANGS = 20.0
"""Seconds that only what waits for a node that is away can take."""
CONFIG = QueueConfig(shards=SHARDS, request_timeout=DEADLINE)
USERS = [f"user-{number}" for number in range(60)]


def shard_of(user: str) -> int:
    return compute_bucket(user) % SHARDS


class Away:
    """One of the three primaries, and its replica, that can be taken away."""

    def __init__(self, six: Six, shard: int) -> None:
        self.six = six
        self.primary = six.primary_of(shard)
        (self.replica,) = six.replicas_of(self.primary)
        self.shards = tuple(shard for shard in range(SHARDS) if six.primary_of(shard) == self.primary)
        self.users = [user for user in USERS if shard_of(user) in self.shards]
        self.others = [user for user in USERS if shard_of(user) not in self.shards]
        self.alive = next(port for port in six.nodes if port not in (self.primary, self.replica))

    @property
    def url(self) -> str:
        """Return the address of a node that stays up."""
        return f"redis://127.0.0.1:{self.alive}"

    def kill(self) -> None:
        for port in (self.replica, self.primary):
            self.six.nodes[port].kill()

    def start(self) -> None:
        for port in (self.primary, self.replica):
            self.six.nodes[port].start()


@contextmanager
def stopped(away: Away) -> Iterator[None]:
    """The nodes take what they are sent and answer nothing."""
    for port in (away.replica, away.primary):
        os.kill(away.six.nodes[port].pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for port in (away.replica, away.primary):
            os.kill(away.six.nodes[port].pid, signal.SIGCONT)


@contextmanager
def in_time(seconds: float = HANGS) -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < seconds
