"""Django signals about tasks and workers. A receiver that fails is logged and harms nothing else.

Sent in worker processes, to all receivers connected there (connect them in an ``AppConfig.ready``). ``sender`` is the
task's registered name, so that a receiver can be for one kind of task.

=================  =============================================================================================
signal             keyword arguments
=================  =============================================================================================
``sla_at_risk``    ``alert`` (`django_fairque.engine.alerts.Alert`): it must start soon to keep its promise
``sla_violated``   ``alert``: it started later than promised
``task_promoted``  ``alert``: it waited so long that it moved up a class
=================  =============================================================================================
"""

from __future__ import annotations

from django.dispatch import Signal

__all__ = ["sla_at_risk", "sla_violated", "task_promoted"]

sla_at_risk = Signal()
sla_violated = Signal()
task_promoted = Signal()
