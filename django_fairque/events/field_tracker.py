"""Records the values that an object's fields had when the object last matched its database row.

Only fields that a `changed` condition names are watched. Their values are recorded when the object is made, refreshed
or saved. Values of a save that was rolled back are ignored.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from django.db.models.fields.files import FieldFile

from django_fairque.tasks.transactions import commit_buffer

from .event import is_historical

if TYPE_CHECKING:
    from django.db.models import Model

    from django_fairque.tasks.transactions.commit_buffer import CommitBuffer

TRACKED_ATTRIBUTE = "_fairque_seen"

tracked: dict[type[Model], tuple[str, ...]] = {}
"""The attribute names of the watched columns, by concrete model class."""

_historical: WeakKeyDictionary[type[Model], tuple[str, ...]] = WeakKeyDictionary()
"""The attribute names of the watched columns, by the model classes of a migration."""


class TrackedFields(NamedTuple):
    """The recorded values by column attribute name. The object is never changed, because a shallow copy of the model
    object may share it.
    """

    known: Mapping[str, Any]
    buffer: CommitBuffer | None = None
    earlier: TrackedFields | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return TrackedFields, (self.get_valid_record().known,)

    def get_valid_record(self) -> TrackedFields:
        """Return this record, or the latest earlier record whose transaction was not rolled back."""
        seen: TrackedFields = self
        while seen.buffer is not None and seen.earlier is not None and not seen.buffer.is_alive:
            seen = seen.earlier
        return seen

    def follow_save(self, values: Mapping[str, Any], buffer: CommitBuffer | None) -> TrackedFields:
        """Return the record after a save. ``buffer`` is that of the save's transaction, or None if the save is already
        committed. Call this on a result of `get_valid_record`.
        """
        before = self
        merged = {**before.known, **values}
        if buffer is None:
            return TrackedFields(merged)
        if before.buffer is buffer:
            return TrackedFields(merged, buffer, before.earlier)
        if before.buffer is not None and before.buffer.is_over:
            before = TrackedFields(before.known)
        return TrackedFields(merged, buffer, before)


def list_watched_names(model: type[Model], fields: Collection[str] | None = None) -> tuple[str, ...]:
    """Return the names of the watched attributes of a class; with ``fields``, only those among ``fields``. For a
    migration's version of a class, return only attributes that this version has.
    """
    found: tuple[str, ...] | None = tracked.get(model, ())
    if is_historical(model) and (found := _historical.get(model)) is None:
        here = {field.attname for field in model._meta.concrete_fields}
        known = (names for tracked_model, names in tracked.items() if tracked_model._meta.label == model._meta.label)
        found = _historical[model] = tuple(name for name in next(known, ()) if name in here)
        if found:
            watch_refreshes(model)
    if not found or fields is None:
        return found or ()
    return tuple(name for name in found if name in fields or model._meta.get_field(name).name in fields)


def _copy_values(instance: Model, attributes: Iterable[str]) -> dict[str, Any]:
    """Copy values that can be changed in place. Deferred fields are not loaded."""
    loaded = instance.__dict__
    return {name: _copy_value(loaded[name]) for name in attributes if name in loaded}


def _copy_value(value: Any) -> Any:
    if isinstance(value, FieldFile):
        return str(value)  # copied, because `obj.file.save()` changes the file's name in place
    return copy.deepcopy(value) if isinstance(value, (dict, list, set, bytearray)) else value


def track_created(instance: Model, **_: Any) -> None:
    names = list_watched_names(type(instance))
    if names:
        instance.__dict__[TRACKED_ATTRIBUTE] = TrackedFields(_copy_values(instance, names))


def track_before_save(instance: Model, raw: bool = False, **_: Any) -> None:
    """Before a save, forget the recorded values of an object that was not read from the database, because the row may
    already exist with unknown values.
    """
    if not raw and instance._state.adding and TRACKED_ATTRIBUTE in instance.__dict__:
        instance.__dict__[TRACKED_ATTRIBUTE] = TrackedFields({})


def get_earlier_values(instance: Model) -> Mapping[str, Any]:
    """Return the known values that the watched fields had before the save that has just happened."""
    seen = instance.__dict__.get(TRACKED_ATTRIBUTE)
    return {} if seen is None else seen.get_valid_record().known


def track_after_save(instance: Model, using: str, update_fields: frozenset[str] | None) -> None:
    names = list_watched_names(type(instance), update_fields)
    if not names:
        return
    values = _copy_values(instance, names)
    seen: TrackedFields = (instance.__dict__.get(TRACKED_ATTRIBUTE) or TrackedFields({})).get_valid_record()
    if any(name not in seen.known or seen.known[name] != value for name, value in values.items()):
        instance.__dict__[TRACKED_ATTRIBUTE] = seen.follow_save(values, commit_buffer.find_event_hook(using))


def track_refreshed(instance: Model, fields: Collection[str] | None) -> None:
    if list_watched_names(type(instance)):
        refreshed = _copy_values(instance, list_watched_names(type(instance), fields))
        instance.__dict__[TRACKED_ATTRIBUTE] = TrackedFields({**get_earlier_values(instance), **refreshed})


def watch_refreshes(model: type[Model]) -> None:
    """Extend `refresh_from_db` of a model, so that the recorded values are updated: Django sends no signal for a
    refresh. The method also loads deferred fields.
    """
    original: Any = model.refresh_from_db
    if getattr(original, TRACKED_ATTRIBUTE, False):
        return

    @functools.wraps(original)
    def refresh_from_db(
        self: Model, using: str | None = None, fields: Iterable[str] | None = None, **options: Any
    ) -> None:
        names = None if fields is None else list(fields)
        original(self, using=using, fields=names, **options)
        track_refreshed(self, names)

    setattr(refresh_from_db, TRACKED_ATTRIBUTE, True)
    model.refresh_from_db = refresh_from_db  # type: ignore[method-assign, assignment]
