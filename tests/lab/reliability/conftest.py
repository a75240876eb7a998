"""The engine's queues, for the failures that other queues had."""

from __future__ import annotations

from tests.engine.conftest import client, make_queue, queue

__all__ = ["client", "make_queue", "queue"]
