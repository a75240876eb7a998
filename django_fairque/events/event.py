"""`Event` describes a change of an object. Conditions and callables receive this object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from django.apps import apps
from django.core.exceptions import FieldDoesNotExist
from django.db.models import Field, Model

from django_fairque.engine.model.errors import nearest


def get_model(given: type[Model] | str) -> type[Model]:
    """Return a model class, given as a class or as a label (``"shop.Order"``). Raises `LookupError` with the mistake if
    there is no such class.
    """
    if isinstance(given, type) and issubclass(given, Model):
        return given
    try:
        return apps.get_model(given)
    except (LookupError, ValueError, AttributeError) as error:
        hint = _hint(str(given), [model._meta.label for model in apps.get_models()])
        raise LookupError(f"there is no model {given!r} ({error}){hint}") from None


def is_historical(model: type[Model]) -> bool:
    """Return whether the class is the version of a model that a migration uses."""
    return model.__module__ == "__fake__"


def get_classes(model: type[Model]) -> list[type[Model]]:
    """Return the model together with its proxies and children in all apps. For an abstract model, return only the
    children.
    """
    known = [candidate for candidate in apps.get_models(include_auto_created=True) if issubclass(candidate, model)]
    return known if model in known or model._meta.abstract else [model, *known]


PATH_SEPARATOR = "__"


def read_value(instance: Any, path: str) -> Any:
    """Return the value at the end of a field path; None if a related object on the path is missing."""
    value = instance
    for part in path.split(PATH_SEPARATOR):
        if value is None:
            return None
        value = getattr(value, part)
    return value


def check_path(model: type[Model], path: str) -> str:
    """Return the reason why a path does not lead to a field of a model. Empty if it does, or if this depends on the
    object.
    """
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


def get_field(model: type[Model], name: str) -> Field[Any, Any]:
    """Return a concrete field by its name or by its column's attribute name. Raises `LookupError` if there is none."""
    try:
        field = model._meta.pk if name == "pk" else model._meta.get_field(name)
    except FieldDoesNotExist:
        raise LookupError(f"{model._meta.label} has no field {name!r}{_hint(name, _names_of_fields(model))}") from None
    if not getattr(field, "concrete", False) or getattr(field, "many_to_many", False):
        raise LookupError(f"{model._meta.label}.{name} has no database column")
    found: Field[Any, Any] = field  # type: ignore[assignment] # concrete
    return found


def find_column(instance: Any, path: str) -> Field[Any, Any] | None:
    """Return the concrete field at the end of a path that starts at an object; None if there is no object or no such
    field.
    """
    way, _, name = path.rpartition(PATH_SEPARATOR)
    holder = read_value(instance, way) if way else instance
    try:
        return get_field(type(holder), name) if isinstance(holder, Model) else None
    except LookupError:
        return None


def get_key_value(instance: Model, column: Field[Any, Any] | None) -> Any:
    """Return the value of a column that refers to an object. A foreign key with ``to_field`` contains another field
    than the primary key.
    """
    target = getattr(column, "target_field", None)
    return instance.pk if target is None else getattr(instance, target.attname, instance.pk)


def _names_of_fields(model: type[Model]) -> list[str]:
    return [field.name for field in model._meta.get_fields()]


def _hint(word: str, known: list[str]) -> str:
    near = nearest(word, known)
    return f"; did you mean {near!r}?" if near else ""


CREATE, UPDATE, SAVE, DELETE, M2M, SIGNAL = "create", "update", "save", "delete", "m2m", "signal"
"""Kinds of events. `SAVE` is a save for which it is unknown whether the object was created."""


_columns: WeakKeyDictionary[type[Model], dict[str, Field[Any, Any]]] = WeakKeyDictionary()
"""Fields by model and name. Without this cache, Django would search several dictionaries for a field at every save."""


@dataclass
class Event:
    """A change of an object of ``model`` with the primary key ``pk``.

    ``kind`` is "create", "update", "save" (created or updated; only the database knows which), "delete", "m2m" or
    "signal". ``using`` is the alias of the database. ``update_fields`` are the names of the fields that were saved,
    None for all. In an "m2m" event, ``action`` is "add", "remove" or "clear", and ``pks`` are the primary keys of the
    objects on the other side. In a "signal" event, ``arguments`` are the arguments of the signal. ``known_instance`` is
    the object if it is loaded.
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
    """Earlier values of the object's fields, by the columns' attribute names. Only values that are known and that a
    condition needs."""
    known_instance: Any = None

    @property
    def instance(self) -> Any:
        """The changed object. If the event came from the other side of a relation, the object is loaded when it is
        first used.
        """
        if self.known_instance is None and self.pk is not None:
            self.known_instance = self.model._base_manager.using(self.using).get(pk=self.pk)
        return self.known_instance

    def value(self, path: str) -> Any:
        """Return the value at the field ``path``, which starts at the object."""
        if path == "pk" and self.pk is not None:
            return self.pk
        return read_value(self.instance, path)

    def column(self, name: str) -> Field[Any, Any]:
        """Return the model's field with this ``name``. Raises `LookupError` if there is none."""
        known = _columns.setdefault(self.model, {})
        if name not in known:
            known[name] = get_field(self.model, name)
        return known[name]

    def is_saved(self, name: str) -> bool:
        """Return whether the field with this ``name`` was saved: it is neither left out of ``update_fields`` nor
        deferred.
        """
        try:
            column = self.column(name)
        except LookupError:
            if is_historical(self.model):
                return False  # the migration's version of the model lacks the field
            raise
        if self.update_fields is not None:
            return bool(self.update_fields & {column.name, column.attname})
        return column.attname in self.instance.__dict__
