"""Model events: changes of a model's objects enqueue tasks after the commit. See docs/guides/model-events.md.

Events are declared in the module ``events`` of an installed app. These modules are imported automatically.
"""

from .conditions import Condition, changed, field_is
from .declarations import Declaration, on_create, on_delete, on_m2m, on_save, on_signal, on_update
from .event import Event
from .querysets import EventQuerySet, EventQuerySetMixin
from .rules import suppress_events

__all__ = [
    "Condition",
    "Declaration",
    "Event",
    "EventQuerySet",
    "EventQuerySetMixin",
    "changed",
    "field_is",
    "on_create",
    "on_delete",
    "on_m2m",
    "on_save",
    "on_signal",
    "on_update",
    "suppress_events",
]
