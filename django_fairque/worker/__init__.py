"""Workers fetch tasks from queues, run them, and report the outcomes. `Worker` and `AsyncWorker` run in the calling process;
`manage.py fairque_worker` starts a supervisor with several worker processes."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .async_worker import AsyncWorker as AsyncWorker
    from .worker import Worker as Worker
else:
    from django_fairque.lazy import export_lazily

    __getattr__, __dir__, __all__ = export_lazily(__name__, {"async_worker": "AsyncWorker", "worker": "Worker"})
