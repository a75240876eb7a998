"""Django signals about tasks and workers. A receiver that fails is logged and harms nothing else.

Connect receivers in an ``AppConfig.ready``. ``sender`` is the task's registered name (of the worker's signals its id), so that a
receiver can be for one kind of task.

===================  ======================================================================  ==============================
signal               when, and where it is sent                                              keyword arguments
===================  ======================================================================  ==============================
``task_pushed``      the queue has accepted it; in the process that enqueued it              ``task``, ``queue``
``task_started``     right before it runs; in its own thread, or awaited on its loop         ``task``, ``queue``
``task_finished``    its result is stored                                                    ``task``, ``queue``, ``took``
``task_failed``      an attempt failed, whatever follows                                     ... and ``error``
``task_retried``     it will run again: after a failure, or because it raised ``Retry``      ... and ``error``, ``delay``
``task_dead``        it is a dead letter now                                                 ... and ``error``
``task_canceled``    it raised ``Discard``; or `TaskResult.cancel` canceled it               ``task`` or ``task_id``, ``queue``
``sla_at_risk``      it must start soon to keep its promise                                  ``alert``
``sla_violated``     it started later than promised                                          ``alert``
``task_promoted``    it waited so long that it moved up a class                              ``alert``
``worker_started``   a worker process can take tasks                                         ``worker_id``, ``queues``
``worker_stopped``   it has settled everything and ends                                      ``worker_id``, ``queues``
===================  ======================================================================  ==============================

``task`` is a `django_fairque.Task`, ``queue`` the queue's name, ``took`` seconds, ``alert`` an `Alert` of
`django_fairque.engine.alerts`. What follows a task's end is sent once the server has taken it, from a thread of the worker
that does nothing else: a slow receiver holds up no task. Beyond 10,000 that wait for receivers, the eldest are dropped.
"""

from __future__ import annotations

from django.dispatch import Signal

__all__ = [
    "sla_at_risk",
    "sla_violated",
    "task_canceled",
    "task_dead",
    "task_failed",
    "task_finished",
    "task_promoted",
    "task_pushed",
    "task_retried",
    "task_started",
    "worker_started",
    "worker_stopped",
]

task_pushed = Signal()
task_started = Signal()
task_finished = Signal()
task_failed = Signal()
task_retried = Signal()
task_dead = Signal()
task_canceled = Signal()
sla_at_risk = Signal()
sla_violated = Signal()
task_promoted = Signal()
worker_started = Signal()
worker_stopped = Signal()
