"""What `add` and `set` of a related manager do: an update that Django sends by a manager of its own, not by the model's."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from django.db import models
from django.db.models.options import Options
from django.utils.functional import cached_property

from .querysets import EventQuerySet, EventQuerySetMixin

if TYPE_CHECKING:
    from django.db.models import Model

ATTRIBUTE = "_fairque_adding"

_Manager: Any = models.Manager.from_queryset(EventQuerySet)


def watch_adding(model: type[Model]) -> None:
    """Have the manager that Django makes for itself fire events, if the model's own does: `remove` and `clear` go by that.

    It is the options' attribute that is replaced, not the manager: Django makes that anew when it forgets what it knows of
    its models.
    """
    options: Any = Options  # for a type checker the attribute is a method
    original = options.base_manager.func
    if not hasattr(original, ATTRIBUTE):

        @functools.wraps(original)
        def base_manager(self: Any) -> Any:
            found = original(self)
            return _firing(found) if found.name == "_base_manager" and _fires(self.default_manager) else found

        setattr(base_manager, ATTRIBUTE, True)
        replaced: Any = cached_property(base_manager)
        replaced.__set_name__(Options, "base_manager")
        options.base_manager = replaced
    model._meta.__dict__.pop("base_manager", None)


def _fires(manager: Any) -> bool:
    return issubclass(getattr(manager, "_queryset_class", models.QuerySet), EventQuerySetMixin)


def _firing(manager: Any) -> Any:
    """The same manager with querysets of ours."""
    found: Any = _Manager()
    found.__dict__.update(manager.__dict__)
    return found
