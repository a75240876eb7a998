"""Events of many-to-many relations, which change from either side: by the relation's manager, or by rows of a
``through`` model.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import django
from django.core.exceptions import FieldDoesNotExist
from django.core.serializers.base import DeserializedObject
from django.db.models import ManyToManyField, Model, signals

from . import rules
from .event import M2M, Event, get_classes, is_historical

if TYPE_CHECKING:
    from .rules import Rule

LOADING_ATTRIBUTE = "_fairque_loading"


def is_loading(instance: Model) -> bool:
    return LOADING_ATTRIBUTE in instance.__dict__


def watch_relations() -> None:
    """Record while objects are loaded from a fixture: before Django 6.1, the signal `m2m_changed` has no ``raw``, and a
    fixture sets relations with ordinary signals.
    """
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


class Relation(NamedTuple):
    """A many-to-many field of one class to which rules apply. A field of an abstract model is a separate relation in
    each class that derives from the model.
    """

    target: type[Model]
    """The model for which the rules are declared."""
    model: type[Model]
    """The model of the objects: the target, or a class that derives from it if the target is abstract."""
    field: ManyToManyField[Any, Any]

    @property
    def through(self) -> type[Model]:
        through: type[Model] = self.field.remote_field.through
        return through

    @property
    def has_own_rows(self) -> bool:
        """Whether the project has declared the ``through`` model itself."""
        return not self.through._meta.auto_created

    def only_ours(self, pks: Iterable[Any], using: str) -> list[Any]:
        """Return those keys that belong to objects of the model. The rows of an inherited field may belong to parent
        objects that are not objects of the model.
        """
        if self.model._meta.concrete_model is self.field.model._meta.concrete_model:
            return sorted(pks)
        # The rows name the parent by the parent's key, which differs from the model's own key if the model has several
        # parents.
        parents = {f"{self.field.m2m_target_field_name()}__in": list(pks)}
        found = self.model._base_manager.using(using).filter(**parents)
        return list(found.order_by("pk").values_list("pk", flat=True))


def find_relations(target: type[Model], name: str) -> Iterator[Relation]:
    """Yield the relation of the field with this name. For an abstract model, yield one relation for each class that
    defines the field.
    """
    if not target._meta.abstract:
        yield Relation(target, target, cast("Any", target._meta.get_field(name)))
        return
    for model in get_classes(target):
        for field in model._meta.local_many_to_many:
            if field.name == name and not model._meta.proxy:
                yield Relation(target, model, field)


RELATION_RECEIVER_ID = "django_fairque.events"
CLEARING = "_fairque_clearing"


_watched: dict[type[Model], list[Relation]] = {}
"""The watched relations, by ``through`` model."""


def connect_relation(target: type[Model], name: str) -> None:
    watch_relations()
    for relation in find_relations(target, name):
        through = relation.through
        relations = _watched.setdefault(through, [])
        if relation not in relations:
            relations.append(relation)
        signals.m2m_changed.connect(relation_changed, sender=through, dispatch_uid=RELATION_RECEIVER_ID)
        if relation.has_own_rows:
            signals.post_save.connect(row_saved, sender=through, dispatch_uid=f"{RELATION_RECEIVER_ID}.through")
            signals.pre_delete.connect(row_deleting, sender=through, dispatch_uid=f"{RELATION_RECEIVER_ID}.through")


def _find_through_relations(through: type[Model]) -> Iterator[Relation]:
    """Yield the relations of a ``through`` model. For a migration's version of the model, use the migration's
    classes.
    """
    if not is_historical(through):
        yield from _watched.get(through, ())
        return
    for relation in [relation for some in _watched.values() for relation in some]:
        if relation.through._meta.label == through._meta.label:
            with suppress(LookupError, FieldDoesNotExist):  # in earlier migrations, models may lack the relation
                model = through._meta.apps.get_model(relation.model._meta.label)
                field = model._meta.get_field(relation.field.name)
                yield Relation(relation.target, model, cast("Any", field))


def relation_changed(
    sender: type[Model],
    instance: Model,
    action: str,
    reverse: bool,
    pk_set: Collection[Any] | None,
    using: str,
    raw: bool = False,
    **_: Any,
) -> None:
    if raw or is_loading(instance):
        return
    when, word = action.split("_")
    for relation in _find_through_relations(sender):
        key = (relation, reverse)
        if word == "clear" and when == "pre":
            instance.__dict__.setdefault(CLEARING, {})[key] = _read_related_keys(
                relation.field, instance, using, reverse=reverse
            )
        # each deleted row of a declared through model also sends a signal
        elif when == "post" and not (relation.has_own_rows and word != "add"):
            pks = pk_set
            if word == "clear":
                pks = instance.__dict__.get(CLEARING, {}).pop(key, None)
            if pks:
                _fire(relation, word, instance, pks, using, reverse=reverse)


def _fire(relation: Relation, action: str, instance: Model, pks: Iterable[Any], using: str, *, reverse: bool) -> None:
    """Fire one event for each object on the side of the field. A symmetrical relation sends one signal, but its events
    fire for the objects on both sides.
    """
    if not reverse:
        if isinstance(instance, relation.model):
            _fire_rules(relation, action, instance.pk, pks, using, instance)
        if (
            not relation.field.remote_field.symmetrical
        ):  # in a symmetrical relation, each object has the other object in its field
            return
        pks = set(pks) - {getattr(instance, relation.field.m2m_reverse_target_field_name())}
    if _rules(relation, action):
        for pk in relation.only_ours(pks, using):
            _fire_rules(relation, action, pk, [instance.pk], using)


def _fire_rules(
    relation: Relation, action: str, pk: Any, others: Iterable[Any], using: str, instance: Model | None = None
) -> None:
    event = Event(M2M, relation.model, using, pk=pk, action=action, pks=frozenset(others), known_instance=instance)
    for rule in _rules(relation, action):
        rule.fire(event)


def _rules(relation: Relation, action: str) -> list[Rule]:
    """Return the rules that were declared for exactly this target. Rules of a parent belong to a separate relation."""
    return [
        rule
        for rule in rules.of_model(relation.target)
        if M2M in rule.kinds
        and rule.model is relation.target
        and rule.relation == relation.field.name
        and action in rule.actions
    ]


def _read_related_keys(field: Any, instance: Model, using: str, *, reverse: bool) -> list[Any]:
    """Return the primary keys of the objects on the other side, before the relation is cleared."""
    here, there, key = field.m2m_field_name(), field.m2m_reverse_field_name(), field.m2m_target_field_name()
    if reverse:
        here, there, key = there, here, field.m2m_reverse_target_field_name()
    rows = field.remote_field.through._base_manager.using(using).filter(**{here: getattr(instance, key)})
    return list(rows.values_list(f"{there}_id", flat=True))


def row_saved(sender: type[Model], instance: Model, created: bool, using: str, raw: bool = False, **_: Any) -> None:
    if created and not raw:
        _row("add", sender, instance, using)


def row_deleting(sender: type[Model], instance: Model, using: str, **_: Any) -> None:
    _row("remove", sender, instance, using)


def _row(action: str, sender: type[Model], row: Model, using: str) -> None:
    for relation in _find_through_relations(sender):
        if not _rules(relation, action):
            continue
        field = relation.field
        here = sender._meta.get_field(field.m2m_field_name()).attname  # type: ignore[union-attr]
        there = sender._meta.get_field(field.m2m_reverse_field_name()).attname  # type: ignore[union-attr]
        for pk in relation.only_ours([getattr(row, here)], using):
            _fire_rules(relation, action, pk, [getattr(row, there)], using)
