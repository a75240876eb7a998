"""`Event`: what has happened, as conditions and callables get to see it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from .classes import is_historical
from .paths import field_of, value_at

if TYPE_CHECKING:
    from collections.abc import Mapping

    from django.db.models import Field, Model

CREATE, UPDATE, SAVE, DELETE, M2M, SIGNAL = "create", "update", "save", "delete", "m2m", "signal"
"""Kinds of events. `SAVE` is a save of which nobody can tell whether it created the object."""


_columns: WeakKeyDictionary[type[Model], dict[str, Field[Any, Any]]] = WeakKeyDictionary()
"""By model and name: Django looks through several dictionaries for one, at every save."""


@dataclass
class Event:
    """Something that has happened to an object.

    ``kind`` is "create", "update", "save" (created or updated, which only the database knows), "delete", "m2m" or
    "signal"; ``using`` the alias of the database. ``update_fields`` are the names of the fields that were saved, None for
    all. Of an "m2m" event ``action`` is "add", "remove" or "clear" and ``pks`` are the other side's primary keys; of a
    "signal" event ``arguments`` are the signal's.
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
        """The object. Loaded when it is first asked for, if the event came from the other side of a relation."""
        if self.known_instance is None and self.pk is not None:
            self.known_instance = self.model._base_manager.using(self.using).get(pk=self.pk)
        return self.known_instance

    def value(self, path: str) -> Any:
        """What a field path leads to from the object."""
        if path == "pk" and self.pk is not None:
            return self.pk
        return value_at(self.instance, path)

    def column(self, name: str) -> Field[Any, Any]:
        """The field of that name."""
        known = _columns.setdefault(self.model, {})
        if name not in known:
            known[name] = field_of(self.model, name)
        return known[name]

    def is_saved(self, name: str) -> bool:
        """Whether a field was among those that were saved: not left out of ``update_fields``, not deferred."""
        try:
            column = self.column(name)
        except LookupError:
            if is_historical(self.model):
                return False  # the field was not there then
            raise
        if self.update_fields is not None:
            return bool(self.update_fields & {column.name, column.attname})
        return column.attname in self.instance.__dict__
