"""Names of fields, possibly of related objects: ``"customer_id"``, ``"owner__slug"``."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from django.core.exceptions import FieldDoesNotExist
from django.db.models import Model

if TYPE_CHECKING:
    from django.db.models import Field

SEPARATOR = "__"


def value_at(instance: Any, path: str) -> Any:
    """The value that a path leads to; None where a related object on the way is missing."""
    value = instance
    for part in path.split(SEPARATOR):
        if value is None:
            return None
        value = getattr(value, part)
    return value


def problem_of(model: type[Model], path: str) -> str:
    """Why a path leads nowhere from a model; empty if it leads somewhere, or to where only an object could tell."""
    current: Any = model
    for part in path.split(SEPARATOR):
        if current is None:
            return ""
        if part == "pk":
            current = None
            continue
        try:
            field = current._meta.get_field(part)
        except FieldDoesNotExist:
            if not hasattr(current, part):
                return f"{current._meta.label} has no field or attribute {part!r}{_nearest(current, part)}"
            current = None
        else:
            current = getattr(field, "related_model", None) if part == field.name else None
    return ""


def field_of(model: type[Model], name: str) -> Field[Any, Any]:
    """A concrete field by its name or its column's attribute; `LookupError` says what there is instead."""
    try:
        field = model._meta.pk if name == "pk" else model._meta.get_field(name)
    except FieldDoesNotExist:
        raise LookupError(f"{model._meta.label} has no field {name!r}{_nearest(model, name)}") from None
    if not getattr(field, "concrete", False) or getattr(field, "many_to_many", False):
        raise LookupError(f"{model._meta.label}.{name} has no column of its own")
    found: Field[Any, Any] = field  # type: ignore[assignment] # concrete
    return found


def column_at(instance: Any, path: str) -> Field[Any, Any] | None:
    """The concrete field at the end of a path from an object; None where there is no object or no such field."""
    way, _, name = path.rpartition(SEPARATOR)
    holder = value_at(instance, way) if way else instance
    try:
        return field_of(type(holder), name) if isinstance(holder, Model) else None
    except LookupError:
        return None


def key_of(instance: Model, column: Field[Any, Any] | None) -> Any:
    """What a column holds that refers to an object: of a foreign key with ``to_field`` another field than the primary key."""
    target = getattr(column, "target_field", None)
    return instance.pk if target is None else getattr(instance, target.attname, instance.pk)


def _nearest(model: type[Model], name: str) -> str:
    near = difflib.get_close_matches(name, [field.name for field in model._meta.get_fields()], n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
