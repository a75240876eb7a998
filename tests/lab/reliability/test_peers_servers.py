"""Failures that other queues had when their server went silent, or changed its role under them."""

from __future__ import annotations

import os
import signal
import time

import pytest

from django_fairque.engine.model.errors import RedisConnectionError, ServerRefusedError
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.queue.queue import FairQueue
from tests.conftest import MakeServer
from tests.engine.conftest import pop, task

IMPATIENT = QueueConfig(request_timeout=0)


def test_a_silent_server_is_not_waited_for_without_end(make_server: MakeServer) -> None:
    """45, 48, 51: a read that never came back, in a process that looked healthy."""
    server = make_server()
    with server.client(socket_timeout=0.5) as client:
        queue = FairQueue(client, config=IMPATIENT)
        queue.push(task())
        lease = pop(queue, None)
        os.kill(server.pid, signal.SIGSTOP)
        began = time.monotonic()
        try:
            for call in (lambda: queue.wait_for_work(0.1), lambda: queue.push(task()), lambda: queue.get_task("x")):
                with pytest.raises(RedisConnectionError):
                    call()
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert time.monotonic() - began < 20
        queue.finish(lease)
        queue.push(task())
        assert queue.pop("w") is not None
        assert queue.check_invariants() == []


def test_a_demoted_server_refuses_clearly_and_is_used_again_after_its_promotion(make_server: MakeServer) -> None:
    """50, 52: an error of a fail-over ended the loop, or the client went on with the wrong server."""
    server = make_server()
    with server.client() as client, server.client() as operator:
        queue = FairQueue(client, config=IMPATIENT)
        queue.push(task())
        lease = pop(queue, None)
        operator.replicaof("127.0.0.1", 1)
        with pytest.raises(ServerRefusedError, match="read-only replica"):
            queue.push(task())
        with pytest.raises(ServerRefusedError, match="read-only replica"):
            queue.finish(lease)
        operator.replicaof("NO", "ONE")
        queue.finish(lease)
        queue.push(task())
        assert queue.pop("w") is not None
        assert queue.check_invariants() == []
