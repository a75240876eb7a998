"""The backend as Django's tests want one: they look at what was enqueued, and clear it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django_fairque.backends import FairqueBackend
from django_fairque.conf import get_config, get_queue

if TYPE_CHECKING:
    from django_fairque.backends.compat import AnyResult

WAITING = ("queued", "scheduled")


class RecordedBackend(FairqueBackend):
    """For a server of its own: `clear` empties it."""

    @property
    def results(self) -> list[AnyResult]:
        """Of what was enqueued and did not run."""
        queues = [get_queue(name) for name in get_config().queues]
        return [
            self.get_result(task.task_id) for queue in queues for state in WAITING for task in queue.tasks(state).items
        ]

    def clear(self) -> None:
        client: Any = get_queue().client
        client.flushdb()
