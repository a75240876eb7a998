"""Model events that can't be, and what happens to watched models without Django's knowing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.db import models

from .messages import error, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.core.checks import CheckMessage


def check_events(**_: Any) -> list[CheckMessage]:
    """Events of unknown models, fields and tasks; and deletions that the database makes by itself."""
    from django_fairque.events import registry
    from django_fairque.events.event import DELETE

    rules = registry.rules()
    found = [
        error(
            "fairque.E020",
            f"the model event {rule.name} is switched off: {problem}",
            "Nothing is enqueued when it happens until this is right.",
        )
        for rule in rules
        for problem in rule.problems
    ]
    deleted = {rule.model for rule in rules if rule.is_on and DELETE in rule.kinds}
    return [*found, *(message for model in deleted if model is not None for message in _cascades(model))]


def _cascades(model: type[models.Model]) -> Iterator[CheckMessage]:
    """Django 6.1 can leave cascades to the database, which sends no signals."""
    by_database = getattr(models, "DB_CASCADE", None)
    for each in apps.get_models():
        if not issubclass(each, model):
            continue
        for field in each._meta.concrete_fields:
            if by_database is not None and field.remote_field and field.remote_field.on_delete is by_database:
                yield warning(
                    "fairque.W020",
                    f"objects of {each._meta.label} that go with their {field.name} are deleted by the database: their "
                    "model event on_delete does not fire then",
                    f"Use CASCADE for {each._meta.label}.{field.name}, or watch {field.related_model._meta.label}.",  # type: ignore[union-attr]
                )
