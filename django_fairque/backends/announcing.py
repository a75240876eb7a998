"""`task_enqueued` of `django.tasks`: sent when the queue has accepted a task, after the commit where there is one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django_fairque import signals

from . import definition, results
from .compat import task_enqueued

if TYPE_CHECKING:
    from django_fairque.engine.model.task import Task as Record


def announce(sender: str, task: Record, queue: str, **_: Any) -> None:
    """Receiver of the queue's own `task_pushed`."""
    known = definition.find(sender)
    if known is None:
        return
    result = results.stored(known.task, task, queue, (), results.alias_of(known.task, task))
    task_enqueued.send(type(result.task.get_backend()), task_result=result)


signals.task_pushed.connect(announce, dispatch_uid="django_fairque.backends")
