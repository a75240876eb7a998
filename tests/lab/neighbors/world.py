"""A server and worker processes for one case, and how to push tasks and to look at what became of them."""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.queue import FairQueue
from tests.servers import Server
from tests.worker.conftest import WorkerProcess, eventually, recorded
from tests.worker.project.tasks import STARTED

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from typing_extensions import Self

    from django_fairque.engine.model.records import TaskState


class World:
    """Use it as a context manager: at its end all workers and the server are gone."""

    def __init__(self, **config: Any) -> None:
        self.server = Server()
        self.config = QueueConfig(**{"retry_base_seconds": 0.05, "retry_jitter": 0, **config})
        self.workers: list[WorkerProcess] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(self.server)
        self.directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="fq-neighbors-")))
        self.redis = self._stack.enter_context(self.server.client())
        self.queue = FairQueue(self.redis, "default", self.config)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for worker in self.workers:
            worker.close()
        self._stack.close()

    def start_worker(self, *arguments: str, ready: int = 1, **environment: str) -> WorkerProcess:
        """Start ``manage.py fairque_worker`` with these arguments; returns when ``ready`` processes are."""
        worker = WorkerProcess(self.server, self.directory, *arguments, **environment)
        self.workers.append(worker)
        return worker.wait_ready(ready)

    def task(self, user: str, name: str, *args: object, **options: Any) -> Task:
        return Task.create(user, options.pop("priority", 3), {"args": args, "kwargs": {}}, name=name, **options)

    def push(self, user: str, name: str, *args: object, **options: Any) -> str:
        """Push one call of a task of ``tests/worker/project/tasks.py``; returns its id."""
        return self.queue.push(self.task(user, name, *args, **options)).task_id

    def push_many(self, user: str, name: str, count: int, *args: object, **options: Any) -> list[str]:
        results = self.queue.push_batch([self.task(user, name, *args, **options) for _ in range(count)])
        return [result.task_id for result in results]

    def starts(self) -> dict[str, int]:
        """Return the number of starts of each task that records them."""
        counts: dict[str, int] = {}
        for task_id, _ in recorded(self.redis, STARTED):
            counts[task_id] = counts.get(task_id, 0) + 1
        return counts

    def extra_starts(self, ids: Iterable[str]) -> int:
        """The most additional starts that one of these tasks has had."""
        counts = self.starts()
        return max((counts.get(task_id, 0) - 1 for task_id in ids), default=0)

    def states(self, ids: Iterable[str]) -> list[TaskState]:
        return [self.queue.get_task(task_id).state for task_id in ids]

    def wait_for(self, ids: Iterable[str], state: TaskState, seconds: float = 30.0) -> None:
        """Wait until all these tasks are in this state."""
        remaining = list(ids)

        def are_there() -> bool:
            remaining[:] = [task_id for task_id in remaining if self.queue.get_task(task_id).state is not state]
            return not remaining

        eventually(are_there, seconds)

    def now(self) -> float:
        return time.time()
