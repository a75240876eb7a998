"""Many-to-many relations: changed from either side, by the relation's manager or by rows of a ``through`` model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db.models import signals

from . import registry
from .event import M2M, Event

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from django.db.models import ManyToManyField, Model

UID = "django_fairque.events"
CLEARING = "_fairque_clearing"

Relation = tuple["type[Model]", "ManyToManyField[Any, Any]"]
_watched: dict[type[Model], list[Relation]] = {}
"""By through model, the relations that rules are about: each the rules' model and the field."""


def connect_relation(model: type[Model], name: str) -> None:
    field: Any = model._meta.get_field(name)
    through = field.remote_field.through
    relations = _watched.setdefault(through, [])
    if (model, field) not in relations:
        relations.append((model, field))
    signals.m2m_changed.connect(changed, sender=through, dispatch_uid=UID)
    if not through._meta.auto_created:
        signals.post_save.connect(row_saved, sender=through, dispatch_uid=f"{UID}.through")
        signals.pre_delete.connect(row_deleting, sender=through, dispatch_uid=f"{UID}.through")


def changed(
    sender: type[Model],
    instance: Model,
    action: str,
    reverse: bool,
    pk_set: Collection[Any] | None,
    using: str,
    raw: bool = False,
    **_: Any,
) -> None:
    if raw:
        return
    has_own_rows = not sender._meta.auto_created
    when, word = action.split("_")
    for model, field in _watched.get(sender, ()):
        if word == "clear" and when == "pre":
            instance.__dict__.setdefault(CLEARING, {})[field, reverse] = _related(
                field, instance, using, reverse=reverse
            )
        elif when == "post" and not (has_own_rows and word != "add"):  # of rows of one's own each deletion is told
            pks = pk_set
            if word == "clear":
                pks = instance.__dict__.get(CLEARING, {}).pop((field, reverse), None)
            if pks:
                _fire(model, field, word, instance, pks, using, reverse=reverse)


def _fire(
    model: type[Model],
    field: ManyToManyField[Any, Any],
    action: str,
    instance: Model,
    pks: Iterable[Any],
    using: str,
    *,
    reverse: bool,
) -> None:
    """One event for each object on the side of the field."""
    if not reverse:
        if isinstance(instance, model):
            _tell(model, field, action, instance.pk, pks, using, instance)
        return
    for pk in sorted(pks):
        _tell(model, field, action, pk, [instance.pk], using)


def _tell(
    model: type[Model],
    field: ManyToManyField[Any, Any],
    action: str,
    pk: Any,
    others: Iterable[Any],
    using: str,
    instance: Model | None = None,
) -> None:
    event = Event(M2M, model, using, pk=pk, action=action, pks=frozenset(others), known_instance=instance)
    for rule in registry.of_model(model):
        if M2M in rule.kinds and rule.relation == field.name and action in rule.actions:
            rule.fire(event)


def _related(field: Any, instance: Model, using: str, *, reverse: bool) -> list[Any]:
    """The other side's primary keys, before they are cleared."""
    here, there = field.m2m_field_name(), field.m2m_reverse_field_name()
    if reverse:
        here, there = there, here
    rows = field.remote_field.through._base_manager.using(using).filter(**{here: instance.pk})
    return list(rows.values_list(f"{there}_id", flat=True))


def row_saved(
    sender: type[Model],
    instance: Model,
    created: bool,
    using: str,
    raw: bool = False,
    **_: Any,
) -> None:
    if created and not raw:
        _row("add", sender, instance, using)


def row_deleting(sender: type[Model], instance: Model, using: str, **_: Any) -> None:
    _row("remove", sender, instance, using)


def _row(action: str, sender: type[Model], row: Model, using: str) -> None:
    for model, field in _watched.get(sender, ()):
        here = sender._meta.get_field(field.m2m_field_name()).attname  # type: ignore[union-attr]
        there = sender._meta.get_field(field.m2m_reverse_field_name()).attname  # type: ignore[union-attr]
        _tell(model, field, action, getattr(row, here), [getattr(row, there)], using)
