from __future__ import annotations

from tests.engine.conftest import make_queue, queue

__all__ = ["make_queue", "queue"]
