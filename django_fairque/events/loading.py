"""Objects of fixtures, and their relations, as they are loaded."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import django
from django.core.serializers.base import DeserializedObject

if TYPE_CHECKING:
    from django.db.models import Model

LOADING_ATTRIBUTE = "_fairque_loading"


def is_loading(instance: Model) -> bool:
    return LOADING_ATTRIBUTE in instance.__dict__


def watch_relations() -> None:
    """Have objects say that they are loaded: before Django 6.1 `m2m_changed` has no ``raw``, and sets relations as anybody."""
    original: Any = DeserializedObject.save
    if django.VERSION >= (6, 1) or hasattr(original, LOADING_ATTRIBUTE):
        return

    @functools.wraps(original)
    def save(self: DeserializedObject, *args: Any, **options: Any) -> None:
        self.object.__dict__[LOADING_ATTRIBUTE] = True
        try:
            original(self, *args, **options)
        finally:
            self.object.__dict__.pop(LOADING_ATTRIBUTE, None)

    setattr(save, LOADING_ATTRIBUTE, True)
    DeserializedObject.save = save  # type: ignore[method-assign]
