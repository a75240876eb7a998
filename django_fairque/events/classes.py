"""Which classes a rule about a model concerns."""

from __future__ import annotations

import difflib

from django.apps import apps
from django.db.models import Model


def model_of(given: type[Model] | str) -> type[Model]:
    """The class itself, or the one with that label (``"shop.Order"``); `LookupError` says what is wrong with it."""
    if isinstance(given, type) and issubclass(given, Model):
        return given
    try:
        return apps.get_model(given)
    except (LookupError, ValueError, AttributeError) as error:
        labels = [model._meta.label for model in apps.get_models()]
        near = difflib.get_close_matches(str(given), labels, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise LookupError(f"there is no model {given!r} ({error}){hint}") from None


def is_historical(model: type[Model]) -> bool:
    """Whether it is a migration's class for a model as it was then."""
    return model.__module__ == "__fake__"


def classes_of(model: type[Model]) -> list[type[Model]]:
    """The model and everything that is one: proxies and children, in all apps. An abstract model's children only."""
    known = [each for each in apps.get_models(include_auto_created=True) if issubclass(each, model)]
    return known if model in known or model._meta.abstract else [model, *known]
