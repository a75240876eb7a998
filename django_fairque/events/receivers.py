"""From Django's signals to events. Connected per model class: a receiver for all of them would slow down every model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db.models import signals

from . import loading, registry, relations, seen
from .classes import classes_of, is_historical
from .event import CREATE, DELETE, SIGNAL, UPDATE, Event

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.db.models import Model
    from django.db.models.signals import ModelSignal

    from .rules import Rule

RECEIVER_ID = "django_fairque.events"


def connect(rule: Rule) -> None:
    """Listen to what a rule is about; connecting the same receiver again changes nothing."""
    if rule.signal is not None:
        _connect_signal(rule)
    if rule.model is None:
        return
    signals.pre_migrate.connect(migration_begins, dispatch_uid=RECEIVER_ID)
    signals.post_migrate.connect(migration_ends, dispatch_uid=RECEIVER_ID)
    if rule.relation:
        relations.connect_relation(rule.model, rule.relation)
        return
    for model in classes_of(rule.model):
        if {CREATE, UPDATE} & rule.kinds:
            signals.post_save.connect(object_saved, sender=model, dispatch_uid=RECEIVER_ID)
        if DELETE in rule.kinds:
            signals.pre_delete.connect(object_deleting, sender=model, dispatch_uid=RECEIVER_ID)
        if model in seen.tracked:
            signals.post_init.connect(object_made, sender=model, dispatch_uid=RECEIVER_ID)
            signals.pre_save.connect(object_saving, sender=model, dispatch_uid=RECEIVER_ID)


def object_made(instance: Model, **_: Any) -> None:
    seen.note_made(instance)


def object_saving(instance: Model, raw: bool = False, **_: Any) -> None:
    if not raw:
        seen.note_saving(instance)


def object_saved(
    sender: type[Model],
    instance: Model,
    created: bool,
    using: str,
    update_fields: Any = None,
    raw: bool = False,
    **_: Any,
) -> None:
    """A fixture (raw) fires nothing: what it refers to may not be there yet."""
    fields = None if update_fields is None else frozenset(update_fields)
    if not raw and registry.of_model(sender):
        kind = CREATE if created else UPDATE
        before = {} if created else seen.before(instance)
        event = Event(kind, sender, using, pk=instance.pk, update_fields=fields, before=before, known_instance=instance)
        registry.fire(sender, event)
    seen.note_saved(instance, using, fields)


def object_deleting(sender: type[Model], instance: Model, using: str, **_: Any) -> None:
    """Before the row is gone, while what it refers to can be read; Django has opened a transaction."""
    registry.fire(sender, Event(DELETE, sender, using, pk=instance.pk, known_instance=instance))


def migration_begins(**_: Any) -> None:
    """Data migrations have classes of their own for models, which are not there yet: listen to all for a while."""
    for signal, receiver in _HISTORICAL:
        signal.connect(receiver, dispatch_uid=RECEIVER_ID)


def migration_ends(**_: Any) -> None:
    for signal, _receiver in _HISTORICAL:
        signal.disconnect(dispatch_uid=RECEIVER_ID)


def _of_historical(*receivers: Callable[..., None]) -> Callable[..., None]:
    """These receivers, of what a migration's classes do."""

    def received(sender: Any, **about: Any) -> None:
        if is_historical(sender):
            for receiver in receivers:
                receiver(sender=sender, **about)

    return received


_HISTORICAL: tuple[tuple[ModelSignal, Callable[..., None]], ...] = (
    (signals.post_init, _of_historical(object_made)),
    (signals.pre_save, _of_historical(object_saving)),
    (signals.post_save, _of_historical(object_saved, relations.row_saved)),
    (signals.pre_delete, _of_historical(object_deleting, relations.row_deleting)),
    (signals.m2m_changed, _of_historical(relations.relation_changed)),
)


def _connect_signal(rule: Rule) -> None:
    assert rule.signal is not None  # noqa: S101 - the caller looked

    is_relation = rule.signal is signals.m2m_changed
    if is_relation:
        loading.watch_relations()

    def received(sender: Any, **arguments: Any) -> None:
        if arguments.get("raw") or (is_relation and loading.is_loading(arguments["instance"])):
            return
        arguments.pop("signal", None)
        instance = arguments.get("instance")
        using = arguments.get("using") or getattr(getattr(instance, "_state", None), "db", None) or "default"
        event = Event(
            SIGNAL,
            type(instance),  # type: ignore[arg-type] # or none at all
            using,
            pk=getattr(instance, "pk", None),
            arguments={"sender": sender, **arguments},
            known_instance=instance,
        )
        rule.fire(event)

    rule.signal.connect(received, sender=rule.sender, weak=False, dispatch_uid=f"{RECEIVER_ID}:{rule.name}")
