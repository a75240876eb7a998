"""Django signals about tasks and workers. If a receiver raises an error, the error is logged and has no other effect.

Connect receivers in an ``AppConfig.ready``. ``sender`` is the task's registered name, so that a receiver can be
connected to the tasks of one name. For signals about workers, ``sender`` is the worker's id.

===================  ======================================================================  ==============================
signal               when, and where it is sent                                              keyword arguments
===================  ======================================================================  ==============================
``task_pushed``      the queue has accepted it; in the process that sent it there            ``task``, ``queue``
``task_started``     right before it runs; in its own thread, or awaited on its loop         ``task``, ``queue``
``task_finished``    its result is stored                                                    ``task``, ``queue``, ``took``
``task_failed``      an attempt failed, whatever follows                                     ... and ``error``
``task_retried``     it will run again: after a failure, or because it raised ``Retry``      ... and ``error``, ``delay``
``task_dead``        it is a dead letter now                                                 ... and ``error``
``task_canceled``    it raised ``Discard``; or a handle, a command or the admin canceled it  ``task``, ``task_id``, ``queue``
``sla_at_risk``      it must start soon, or it misses its SLA                                ``alert``
``sla_violated``     it started later than its SLA                                           ``alert``
``task_promoted``    it waited so long that it moved up a class                              ``alert``
``task_given_back``  it was given back for the 10th, 20th, ... time after it had begun            ``alert``
``data_lost``        a worker noticed that the server came back empty, or without its last changes    ``alert``
``worker_started``   a worker process can take tasks                                         ``worker_id``, ``queues``
``worker_stopped``   it has settled everything and ends                                      ``worker_id``, ``queues``
===================  ======================================================================  ==============================

``task`` is a `django_fairque.Task`, ``queue`` the queue's name, ``took`` seconds, ``alert`` an `Alert` of
`django_fairque.engine.statistics.health`.

Signals about the end of a task are sent after the server has stored the end. A separate thread of the worker sends them, so a
slow receiver delays no task. If more than 10,000 signals wait for receivers, the oldest are dropped. If the task's own worker
can't send the signal (the process ended, the task expired, or its workers died), another worker does; ``took`` is then 0.0
unless an attempt has failed. After a ``Discard``, ``task_canceled`` also has ``took`` and ``error``. The engine's own methods
(`FairQueue.push`, `FairQueue.cancel`, …) do not depend on Django and send no signals.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.dispatch import Signal

from django_fairque.safely import Interruption, get_logger, is_a, report_lost_line, type_name

if TYPE_CHECKING:
    from django_fairque.engine.model.lease import Lease
    from django_fairque.engine.model.records import PushResult
    from django_fairque.engine.model.task import Task

__all__ = [
    "data_lost",
    "sla_at_risk",
    "sla_violated",
    "task_canceled",
    "task_dead",
    "task_failed",
    "task_finished",
    "task_given_back",
    "task_promoted",
    "task_pushed",
    "task_retried",
    "task_started",
    "worker_started",
    "worker_stopped",
]

_names: dict[str, str] = {}
"""The names to which receivers are connected. Django compares senders by identity, so each name must always be the same
object."""


class NamedSignal(Signal):
    """A signal whose senders are names. Equal names are the same sender, even if one name comes from code and the other
    one from the server.
    """

    def __init__(self) -> None:
        super().__init__()
        self._senders: set[Any] = set()
        """The senders to which receivers are connected; None stands for all senders."""

    def connect(self, receiver: Any, sender: Any = None, weak: bool = True, dispatch_uid: Any = None) -> None:
        if isinstance(sender, str):
            sender = _names.setdefault(sender, sender)
        self._senders.add(sender if isinstance(sender, str) else None)
        super().connect(receiver, sender, weak, dispatch_uid)

    def disconnect(self, receiver: Any = None, sender: Any = None, dispatch_uid: Any = None) -> bool:
        return bool(super().disconnect(receiver, _resolve_sender(sender), dispatch_uid))

    def may_have_receivers(self, name: str) -> bool:
        """Return False if certainly no receiver is connected for this ``name``. `has_listeners` would take longer."""
        return not self._senders.isdisjoint((name, None))

    def has_listeners(self, sender: Any = None) -> bool:
        return bool(super().has_listeners(_resolve_sender(sender)))

    def _log_robust_failure(self, receiver: Any, err: Exception) -> None:
        """Log an error of a receiver, as Django does. An error in logging is caught too, because the other receivers
        must still be called.
        """
        try:
            super()._log_robust_failure(receiver, err)  # type: ignore[misc] # Django's stubs do not have it
        except BaseException as error:
            if is_a(error, Interruption):
                raise
            report_lost_line("django.dispatch", "a receiver of a signal failed: %s", (type_name(err),), error)

    def send(self, sender: Any, **named: Any) -> list[tuple[Any, Any]]:
        return super().send(_resolve_sender(sender), **named)

    async def asend(self, sender: Any, **named: Any) -> list[tuple[Any, Any]]:
        return await super().asend(_resolve_sender(sender), **named)

    def send_robust(self, sender: Any, **named: Any) -> list[tuple[Any, Any]]:
        return super().send_robust(_resolve_sender(sender), **named)

    async def asend_robust(self, sender: Any, **named: Any) -> list[tuple[Any, Any]]:
        return await super().asend_robust(_resolve_sender(sender), **named)


def _resolve_sender(sender: Any) -> Any:
    return _names.get(sender, sender) if isinstance(sender, str) else sender


task_pushed = NamedSignal()
task_started = NamedSignal()
task_finished = NamedSignal()
task_failed = NamedSignal()
task_retried = NamedSignal()
task_dead = NamedSignal()
task_canceled = NamedSignal()
data_lost = NamedSignal()
sla_at_risk = NamedSignal()
sla_violated = NamedSignal()
task_promoted = NamedSignal()
task_given_back = NamedSignal()
worker_started = NamedSignal()
worker_stopped = NamedSignal()


logger = get_logger("django_fairque.tasks")


def send_task_pushed(queue: str, tasks: Sequence[Task], results: Sequence[PushResult]) -> None:
    """Send `task_pushed` for each accepted task. Duplicates are not accepted, so no signal is sent for them."""
    if not task_pushed.receivers:
        return
    for task, result in zip(tasks, results, strict=True):
        if result.accepted and task_pushed.may_have_receivers(task.name):
            log_receiver_errors(task_pushed.send_robust(sender=task.name, task=task, queue=queue))


async def asend_task_pushed(queue: str, tasks: Sequence[Task], results: Sequence[PushResult]) -> None:
    """Call `send_task_pushed` from a coroutine. The receivers run in the thread for synchronous code, in one call for
    all tasks.
    """
    if task_pushed.receivers and any(task_pushed.may_have_receivers(task.name) for task in tasks):
        await sync_to_async(send_task_pushed)(queue, tasks, results)


def send_task_started(queue: str, lease: Lease) -> None:
    if task_started.receivers:
        log_receiver_errors(task_started.send_robust(sender=lease.name, task=lease.task, queue=queue))


async def asend_task_started(queue: str, lease: Lease) -> None:
    if task_started.receivers:
        log_receiver_errors(await task_started.asend_robust(sender=lease.name, task=lease.task, queue=queue))


def log_receiver_errors(answers: Sequence[tuple[Any, Any]]) -> None:
    """Log the exceptions of receivers in the result of ``send_robust``."""
    for receiver, answer in answers:
        if is_a(answer, Exception):
            logger.error("the receiver %r failed", receiver, exc_info=answer)
