"""`Event`: what has happened, as conditions and callables get to see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from django.apps import apps
from django.core.exceptions import FieldDoesNotExist
from django.db.models import Field, Model

from django_fairque.engine.model.errors import nearest


def model_of(given: type[Model] | str) -> type[Model]:
    """The class itself, or the one with that label (``"shop.Order"``); `LookupError` says what is wrong with it."""
    if isinstance(given, type) and issubclass(given, Model):
        return given
    try:
        return apps.get_model(given)
    except (LookupError, ValueError, AttributeError) as error:
        hint = _hint(str(given), [model._meta.label for model in apps.get_models()])
        raise LookupError(f"there is no model {given!r} ({error}){hint}") from None


def is_historical(model: type[Model]) -> bool:
    """Whether it is a migration's class for a model as it was then."""
    return model.__module__ == "__fake__"


def classes_of(model: type[Model]) -> list[type[Model]]:
    """The model and everything that is one: proxies and children, in all apps. An abstract model's children only."""
    known = [each for each in apps.get_models(include_auto_created=True) if issubclass(each, model)]
    return known if model in known or model._meta.abstract else [model, *known]


PATH_SEPARATOR = "__"


def value_at(instance: Any, path: str) -> Any:
    """The value that a path leads to; None where a related object on the way is missing."""
    value = instance
    for part in path.split(PATH_SEPARATOR):
        if value is None:
            return None
        value = getattr(value, part)
    return value


def problem_of(model: type[Model], path: str) -> str:
    """Why a path leads nowhere from a model; empty if it leads somewhere, or to where only an object could tell."""
    current: Any = model
    for part in path.split(PATH_SEPARATOR):
        if current is None:
            return ""
        if part == "pk":
            current = None
            continue
        try:
            field = current._meta.get_field(part)
        except FieldDoesNotExist:
            if not hasattr(current, part):
                return (
                    f"{current._meta.label} has no field or attribute {part!r}{_hint(part, _names_of_fields(current))}"
                )
            current = None
        else:
            current = getattr(field, "related_model", None) if part == field.name else None
    return ""


def field_of(model: type[Model], name: str) -> Field[Any, Any]:
    """A concrete field by its name or its column's attribute; `LookupError` says what there is instead."""
    try:
        field = model._meta.pk if name == "pk" else model._meta.get_field(name)
    except FieldDoesNotExist:
        raise LookupError(f"{model._meta.label} has no field {name!r}{_hint(name, _names_of_fields(model))}") from None
    if not getattr(field, "concrete", False) or getattr(field, "many_to_many", False):
        raise LookupError(f"{model._meta.label}.{name} has no database column")
    found: Field[Any, Any] = field  # type: ignore[assignment] # concrete
    return found


def column_at(instance: Any, path: str) -> Field[Any, Any] | None:
    """The concrete field at the end of a path from an object; None where there is no object or no such field."""
    way, _, name = path.rpartition(PATH_SEPARATOR)
    holder = value_at(instance, way) if way else instance
    try:
        return field_of(type(holder), name) if isinstance(holder, Model) else None
    except LookupError:
        return None


def key_of(instance: Model, column: Field[Any, Any] | None) -> Any:
    """Return the value of a column that refers to an object. A foreign key with ``to_field`` holds another field than the primary
    key."""
    target = getattr(column, "target_field", None)
    return instance.pk if target is None else getattr(instance, target.attname, instance.pk)


def _names_of_fields(model: type[Model]) -> list[str]:
    return [field.name for field in model._meta.get_fields()]


def _hint(word: str, known: list[str]) -> str:
    near = nearest(word, known)
    return f"; did you mean {near!r}?" if near else ""


CREATE, UPDATE, SAVE, DELETE, M2M, SIGNAL = "create", "update", "save", "delete", "m2m", "signal"
"""Kinds of events. `SAVE` is a save for which it is unknown whether it created the object."""


_columns: WeakKeyDictionary[type[Model], dict[str, Field[Any, Any]]] = WeakKeyDictionary()
"""By model and name: Django looks through several dictionaries for one, at every save."""


@dataclass
class Event:
    """A change of an object of ``model`` with the primary key ``pk``.

    ``kind`` is "create", "update", "save" (created or updated, which only the database knows), "delete", "m2m" or "signal";
    ``using`` the alias of the database. ``update_fields`` are the names of the fields that were saved, None for all. In an "m2m"
    event, ``action`` is "add", "remove" or "clear" and ``pks`` are the other side's primary keys; in a "signal" event,
    ``arguments`` are the signal's. ``known_instance`` is the object if it is loaded.
    """

    kind: str
    model: type[Model]
    using: str
    pk: Any = None
    update_fields: frozenset[str] | None = None
    action: str = ""
    pks: frozenset[Any] = frozenset()
    arguments: Mapping[str, Any] = field(default_factory=dict)
    before: Mapping[str, Any] = field(default_factory=dict)
    """By column attribute, what the object's fields were before, as far as that is known and a condition asks for it."""
    known_instance: Any = None

    @property
    def instance(self) -> Any:
        """The object. Loaded when it is first used, if the event came from the other side of a relation."""
        if self.known_instance is None and self.pk is not None:
            self.known_instance = self.model._base_manager.using(self.using).get(pk=self.pk)
        return self.known_instance

    def value(self, path: str) -> Any:
        """Return what a field ``path`` leads to from the object."""
        if path == "pk" and self.pk is not None:
            return self.pk
        return value_at(self.instance, path)

    def column(self, name: str) -> Field[Any, Any]:
        """Return the field of this ``name``. Raises `LookupError` if there is none."""
        known = _columns.setdefault(self.model, {})
        if name not in known:
            known[name] = field_of(self.model, name)
        return known[name]

    def is_saved(self, name: str) -> bool:
        """Whether the field of this ``name`` was among those that were saved: not left out of ``update_fields``, not
        deferred.
        """
        try:
            column = self.column(name)
        except LookupError:
            if is_historical(self.model):
                return False  # the field was not there then
            raise
        if self.update_fields is not None:
            return bool(self.update_fields & {column.name, column.attname})
        return column.attname in self.instance.__dict__
