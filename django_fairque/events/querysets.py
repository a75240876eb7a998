"""A queryset whose bulk operations fire model events for the changed objects. Django sends no signals for bulk
operations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from django.db import models, transaction

from . import field_tracker, rules
from .event import CREATE, SAVE, UPDATE, Event
from .rules import is_suppressed, suppress_events

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    Base = models.QuerySet[Any]
else:
    Base = object

Model = TypeVar("Model", bound=models.Model)
ROWS_PER_SLICE = 500
"""Number of objects that are loaded at once after an `update`."""


class EventQuerySetMixin(Base):
    """List this class before ``QuerySet``: then `bulk_create`, `bulk_update` and `update` fire model events, in one
    transaction.

    If a rule applies to updates of the model, `update` makes one query more before the update (for the keys and the
    watched fields of the objects), and one query for every 500 objects after it. `delete` is not changed, because
    Django sends signals for it.
    """

    def bulk_create(
        self,
        objs: Iterable[Any],
        batch_size: int | None = None,
        ignore_conflicts: bool = False,
        update_conflicts: bool = False,
        *args: Any,
        **options: Any,
    ) -> list[Any]:
        """Create objects as Django does, and fire an event for each object.

        ``objs``, ``batch_size``, ``args`` and ``options`` are Django's arguments, with Django's defaults. With
        ``ignore_conflicts``, no events fire, because it is unknown which objects were created. With
        ``update_conflicts``, only events that are declared with `on_save` fire. Returns the objects.
        """

        def create() -> list[Any]:
            return super(EventQuerySetMixin, self).bulk_create(
                objs, batch_size, ignore_conflicts, update_conflicts, *args, **options
            )

        kind = SAVE if update_conflicts else CREATE
        if ignore_conflicts or not self._concerns(kind):
            return create()
        self._for_write = True
        with transaction.atomic(using=self.db):
            created = create()
            for instance in created:
                if instance.pk is not None:  # some databases do not return new primary keys
                    self._fire(kind, instance)
                field_tracker.track_after_save(instance, self.db, None)
        return created

    def bulk_update(self, objs: Iterable[Any], fields: Iterable[str], *args: Any, **options: Any) -> int:
        """Update objects as Django does, and fire an event for each object.

        ``objs``, ``fields``, ``args`` and ``options`` are Django's arguments. Returns the number of rows that matched.
        """
        given, names = list(objs), list(fields)
        if not self._concerns(UPDATE):
            return super().bulk_update(given, names, *args, **options)
        self._for_write = True
        with transaction.atomic(using=self.db):
            with suppress_events(self.model):  # `bulk_update` calls `update`, which would fire the same events again
                count = super().bulk_update(given, names, *args, **options)
            for instance in given:
                if instance.pk is not None:
                    self._fire(UPDATE, instance, frozenset(names), field_tracker.get_earlier_values(instance))
                field_tracker.track_after_save(instance, self.db, frozenset(names))
        return count

    def update(self, **values: Any) -> int:
        """Update all rows as Django does, and fire an event for each object.

        ``values`` are Django's arguments. Returns the number of rows that matched.
        """
        if not self._concerns(UPDATE):
            return super().update(**values)
        self._for_write = True
        with transaction.atomic(using=self.db):
            before = self._read_earlier_values()
            count = super().update(**values)
            keys = list(before)
            for first in range(0, len(keys), ROWS_PER_SLICE):
                some = keys[first : first + ROWS_PER_SLICE]
                found = self.model._base_manager.using(self.db).in_bulk(some)
                for key in some:
                    if key in found:
                        self._fire(UPDATE, found[key], frozenset(values), before[key])
        return count

    update.alters_data = True  # type: ignore[attr-defined] # templates must not call it, as in Django
    bulk_create.alters_data = True  # type: ignore[attr-defined]
    bulk_update.alters_data = True  # type: ignore[attr-defined]

    def _concerns(self, kind: str) -> bool:
        if is_suppressed(self.model):
            return False
        return any(kind in rule.kinds for rule in rules.of_model(self.model))

    def _read_earlier_values(self) -> dict[Any, Mapping[str, Any]]:
        """Return the values of the watched fields of the objects that will be changed, by primary key."""
        names = field_tracker.tracked.get(self.model, ())
        rows = self._chain().order_by().values_list("pk", *names)  # type: ignore[attr-defined] # Django's own copy
        return {row[0]: dict(zip(names, row[1:], strict=True)) for row in rows}

    def _fire(
        self, kind: str, instance: Any, fields: frozenset[str] | None = None, before: Mapping[str, Any] | None = None
    ) -> None:
        event = Event(kind, self.model, self.db, instance.pk, fields, before=before or {}, known_instance=instance)
        rules.fire(self.model, event)


if TYPE_CHECKING:

    class EventQuerySet(EventQuerySetMixin, models.QuerySet[Model]):
        """A queryset whose bulk operations fire model events."""

else:

    class EventQuerySet(EventQuerySetMixin, models.QuerySet):
        """A queryset whose bulk operations fire model events: ``objects = EventQuerySet.as_manager()``."""
