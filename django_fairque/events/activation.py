"""Turns Django's signals into model events. Receivers are connected for single model classes, because a receiver for
all classes would slow down every model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from django.db.models import Model, signals

from django_fairque import conf
from django_fairque.engine.model.errors import FairQueueError
from django_fairque.safely import get_logger
from django_fairque.tasks import registry as task_registry
from django_fairque.tasks.options import TaskOptions

from . import field_tracker, relations, rules
from .event import (
    CREATE,
    DELETE,
    M2M,
    SIGNAL,
    UPDATE,
    Event,
    check_path,
    get_classes,
    get_field,
    get_model,
    is_historical,
)
from .relations import find_relations

if TYPE_CHECKING:
    from django.db.models.signals import ModelSignal
    from django.dispatch import Signal

    from .rules import Rule


logger = get_logger("django_fairque.events")

RECEIVER_ID = "django_fairque.events"


def add(rule: Rule) -> None:
    """Declare a rule. The rule is switched on at once, or as soon as the models are loaded."""
    same = sum(other.name == rule.name or other.name.startswith(f"{rule.name}#") for other in rules.rule_registry.rules)
    if same:
        rule.name = f"{rule.name}#{same + 1}"
    rules.rule_registry.rules.append(rule)
    if rules.rule_registry.is_ready:
        switch_on(rule)


def ready() -> None:
    """Switch on the rules that were declared so far. Called when Django is set up, because rules need the loaded
    models.
    """
    rules.rule_registry.is_ready = True
    task_registry.on_register(_task_is_here)
    task_registry.add_mistake_source(rules.mistakes)
    for rule in rules.rule_registry.rules:
        switch_on(rule)


def _task_is_here(name: str) -> None:
    """Switch on the rules that wait for this task to be registered. An app that is listed later in `INSTALLED_APPS` may
    import the task in its own `ready` method.
    """
    for rule in rules.rule_registry.rules if rules.rule_registry.is_ready else ():
        if rule.task == name and not rule.is_on:
            switch_on(rule)
            if rule.is_on:
                logger.info("the model event %s is switched on: its task is registered now", rule.name)


def switch_on(rule: Rule) -> None:
    """Connect a rule to its model's signals. If the rule has mistakes, it stays off, and this is logged;
    `rules.mistakes` lists the mistakes.
    """
    if rule.is_on:
        return
    rule.problems = []
    try:
        rule.model = None if rule.target is None else get_model(rule.target)
    except LookupError as error:
        rule.problems.append(str(error))
    else:
        rule.problems += [*_task_problems(rule), *(_model_problems(rule, rule.model) if rule.model is not None else ())]
    if rule.problems:
        logger.error("the model event %s is switched off: %s", rule.name, "; ".join(rule.problems))
        return
    rule.is_on = True
    rules.rule_registry.of_class.clear()
    names = set() if rule.when is None else set(rule.when.list_tracked_fields())
    for model in get_classes(rule.model) if rule.model is not None and names else ():
        columns = {get_field(model, name).attname for name in names}
        field_tracker.tracked[model] = tuple(sorted(columns.union(field_tracker.tracked.get(model, ()))))
        field_tracker.watch_refreshes(model)
    connect(rule)


def connect(rule: Rule) -> None:
    """Connect the signal receivers that a rule needs. Connecting the same receiver again has no effect."""
    if rule.signal is not None:
        _connect_signal(rule, rule.signal)
    if rule.model is None:
        return
    signals.pre_migrate.connect(migration_begins, dispatch_uid=RECEIVER_ID)
    signals.post_migrate.connect(migration_ends, dispatch_uid=RECEIVER_ID)
    if rule.relation:
        relations.connect_relation(rule.model, rule.relation)
        return
    for model in get_classes(rule.model):
        if {CREATE, UPDATE} & rule.kinds:
            signals.post_save.connect(object_saved, sender=model, dispatch_uid=RECEIVER_ID)
        if DELETE in rule.kinds:
            signals.pre_delete.connect(object_deleting, sender=model, dispatch_uid=RECEIVER_ID)
        if model in field_tracker.tracked:
            signals.post_init.connect(field_tracker.track_created, sender=model, dispatch_uid=RECEIVER_ID)
            signals.pre_save.connect(field_tracker.track_before_save, sender=model, dispatch_uid=RECEIVER_ID)


def object_saved(
    sender: type[Model],
    instance: Model,
    created: bool,
    using: str,
    update_fields: Any = None,
    raw: bool = False,
    **_: Any,
) -> None:
    """Fire the events of a saved object. A fixture (raw) fires no events, because objects to which it refers may not
    exist yet.
    """
    fields = None if update_fields is None else frozenset(update_fields)
    if not raw and rules.of_model(sender):
        kind = CREATE if created else UPDATE
        before = {} if created else field_tracker.get_earlier_values(instance)
        event = Event(kind, sender, using, pk=instance.pk, update_fields=fields, before=before, known_instance=instance)
        rules.fire(sender, event)
    field_tracker.track_after_save(instance, using, fields)


def object_deleting(sender: type[Model], instance: Model, using: str, **_: Any) -> None:
    """Fire the events of an object before its row is deleted, while related objects can still be read. Django has
    opened a transaction.
    """
    rules.fire(sender, Event(DELETE, sender, using, pk=instance.pk, known_instance=instance))


def migration_begins(**_: Any) -> None:
    """Connect receivers for all models during a migration, because data migrations have model classes of their own,
    which do not exist yet.
    """
    for signal, receiver in _HISTORICAL:
        signal.connect(receiver, dispatch_uid=RECEIVER_ID)


def migration_ends(**_: Any) -> None:
    for signal, _receiver in _HISTORICAL:
        signal.disconnect(dispatch_uid=RECEIVER_ID)


def _of_historical(*receivers: Callable[..., None]) -> Callable[..., None]:
    """Make a receiver that calls the given receivers only for model classes of a migration."""

    def received(sender: Any, **about: Any) -> None:
        if is_historical(sender):
            for receiver in receivers:
                receiver(sender=sender, **about)

    return received


_HISTORICAL: tuple[tuple[ModelSignal, Callable[..., None]], ...] = (
    (signals.post_init, _of_historical(field_tracker.track_created)),
    (signals.pre_save, _of_historical(field_tracker.track_before_save)),
    (signals.post_save, _of_historical(object_saved, relations.row_saved)),
    (signals.pre_delete, _of_historical(object_deleting, relations.row_deleting)),
    (signals.m2m_changed, _of_historical(relations.relation_changed)),
)


def _connect_signal(rule: Rule, signal: Signal) -> None:
    is_relation = signal is signals.m2m_changed
    if is_relation:
        relations.watch_relations()

    def received(sender: Any, **arguments: Any) -> None:
        if arguments.get("raw") or (is_relation and relations.is_loading(arguments["instance"])):
            return
        arguments.pop("signal", None)
        instance = arguments.get("instance")
        using = arguments.get("using") or getattr(getattr(instance, "_state", None), "db", None) or "default"
        model: Any = type(instance)  # any class, if the rule's signal belongs to no model
        event = Event(SIGNAL, model, using, pk=getattr(instance, "pk", None), known_instance=instance)
        event.arguments = {"sender": sender, **arguments}
        rule.fire(event)

    signal.connect(received, sender=rule.sender, weak=False, dispatch_uid=f"{RECEIVER_ID}:{rule.name}")


def _task_problems(rule: Rule) -> Iterator[str]:
    try:
        definition = rule.definition
        if rule.bind is None:
            definition.bind([None] * len(rule.args), dict.fromkeys(rule.kwargs))
        # The default queue is always declared. If events use only this queue, a starting process need not read the
        # configuration.
        if definition.options.queue != TaskOptions.queue:
            conf.get_config().queue_config(definition.options.queue)
    except FairQueueError as error:
        from django_fairque.engine.model.options import InvalidOptionsError

        if not isinstance(error, InvalidOptionsError):  # the configuration has mistakes, which another check reports
            yield str(error)


def _model_problems(rule: Rule, model: type[Model]) -> Iterator[str]:
    if rule.when is not None:
        yield from rule.when.problems(model)
    for what, given in (
        ("user", rule.user),
        *((f"argument {number}", argument) for number, argument in enumerate(rule.args, 1)),
        *((f"argument {name!r}", argument) for name, argument in rule.kwargs.items()),
    ):
        if isinstance(given, str) and (problem := check_path(model, given)):
            yield f"{what}: {problem}; write Value({given!r}) if the text itself is meant"
    if M2M in rule.kinds:
        fields = {field.name: field for field in model._meta.many_to_many}
        field = fields.get(rule.relation)
        if field is None:
            names = ", ".join(fields) or "none"
            yield f"{model._meta.label} declares no many-to-many field {rule.relation!r}; it has {names}"
        elif rule.actions == {"clear"} and any(
            relation.has_own_rows for relation in find_relations(model, rule.relation)
        ):
            yield f"a clear of {rule.relation!r} is a 'remove' of each row, because its through model is one of your own"
