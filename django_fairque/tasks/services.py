"""What running tasks ask of their worker."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from . import signing
from .definition import handler_definition
from .queues import get_queue
from .unknown import UnknownTasks

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Set as AbstractSet

    from django_fairque.engine.dependencies.xcom import XCom
    from django_fairque.engine.model.lease import Lease, LeaseKey
    from django_fairque.engine.model.options import QueueConfig
    from django_fairque.engine.queue.queue import FairQueue

    from .definition import AnyDefinition


@dataclass(frozen=True)
class Services:
    """Made by a worker, once per queue, for everything it runs of that queue.

    Args:
        queue: the queue's name.
        config: the queue's own options (retries, size limit).
        send_progress: writes ``(lease, current, total, message)``. It may block; it is never called from an event
            loop's thread and may raise any error of the engine.
        handler: called with the payload of tasks that are bare payloads (``WorkerConfig.handler``).
        timeout: seconds a task may run when neither it nor its queue says.
        own_queue: the queue to read from; by default the configured one of this name.
        tracing: whether each run has a span of OpenTelemetry.
        signing: what is asked of signatures: on, off or verify-only.
        revoked: the leases of tasks canceled under this worker; may change at any time, from any thread.
    """

    queue: str
    config: QueueConfig
    send_progress: Callable[[Lease, float, float, str], object]
    handler: Callable[[Any], Any] | None = None
    timeout: float | None = None
    revoked: AbstractSet[LeaseKey] = frozenset()
    own_queue: FairQueue | None = None
    tracing: bool = False
    signing: str = field(default_factory=signing.mode)
    unknown: UnknownTasks = field(default_factory=UnknownTasks)

    @cached_property
    def bare(self) -> AnyDefinition | None:
        """What runs tasks that are bare payloads."""
        return None if self.handler is None else handler_definition(self.handler)

    def parent_results(self, task_id: str) -> dict[str, Any]:
        """What the tasks that this one depends on returned; blocks."""
        return self._reader.parent_results(task_id)

    def xcom(self, namespace: str) -> XCom:
        return self._reader.xcom(namespace)

    @property
    def _reader(self) -> FairQueue:
        return self.own_queue or get_queue(self.queue)
