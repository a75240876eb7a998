"""Checks of the project's tasks, their queues and schedules, tasks that are sent before a commit, and model events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.conf import settings
from django.db import models

from django_fairque.checks.configuration import load_config, message
from django_fairque.engine.model.errors import ConfigurationError

if TYPE_CHECKING:
    from django.core.checks import CheckMessage

    from django_fairque.conf import FairQueueConfig


def check_tasks(**_: Any) -> list[CheckMessage]:
    """Check the registered tasks for conflicts with each other and with the settings. Returns the messages."""
    config = load_config()
    of_config = () if config is None else (*_queues(config), *_schedules(config), *_early_sending(config))
    return [*_duplicates(), *_middleware(config), *_limits(config), *of_config]


def _duplicates() -> Iterator[CheckMessage]:
    from django_fairque.tasks import registry

    for name, (first, second) in sorted(registry.duplicates().items()):
        text = f"two functions are registered as the task {name!r}: {first} and {second}"
        hint = "Only one of them runs what either sends: rename one, or give it another name with @task(name=…)."
        yield message("fairque.E011", text, hint)


def _middleware(config: FairQueueConfig | None) -> Iterator[CheckMessage]:
    from django_fairque.tasks import registry

    listed: list[tuple[str, object]] = [
        ("the setting MIDDLEWARE", entry) for entry in (config.middleware if config else ())
    ]
    for definition in filter(None, map(registry.find, registry.names())):
        listed += [(f"the task {definition.name!r}", entry) for entry in definition.options.middleware]
    if not listed:
        return  # returns without loading the middleware module, which a project without middleware does not need
    from django_fairque.tasks.middleware import load

    for where, entry in listed:
        try:
            load(entry)
        except ConfigurationError as error:  # noqa: PERF203 - each of them is reported
            hint = "Name a subclass of django_fairque.TaskMiddleware that is made without arguments, or an instance of one."
            yield message("fairque.E017", f"{where} can't be used: {error}", hint)


def _queues(config: FairQueueConfig) -> Iterator[CheckMessage]:
    from django_fairque.tasks import registry

    for definition in filter(None, map(registry.find, registry.names())):
        name = definition.options.queue
        try:
            config.queue_config(name)
        except ConfigurationError as undeclared:
            text = f"the task {definition.name!r} can't be enqueued: {undeclared}"
            yield message("fairque.E016", text, "Declare the queue in QUEUES, or name a declared one in the task.")


def _limits(config: FairQueueConfig | None) -> Iterator[CheckMessage]:
    from django_fairque.tasks import registry

    declared = {one.name: one for one in map(registry.find, registry.names()) if one is not None and one.options.limits}
    if not declared:
        return
    from django_fairque.tasks.limits import find_conflicts, find_shard_problem

    for key, first, other in find_conflicts({name: one.options.limits for name, one in declared.items()}):
        text = f"the tasks {first!r} and {other!r} give the limit {key!r} different values"
        yield message("fairque.E021", text, "All tasks share the limit: give it one value, or another key.")
    for name, definition in declared.items():
        queue = None if config is None else config.queues.get(definition.options.queue)
        shards = 1 if queue is None else queue.shards
        for problem in filter(None, (find_shard_problem(limit, shards) for limit in definition.options.limits)):
            text = f"the task {name!r} can't be enqueued: {problem}"
            yield message("fairque.E021", text, "Change one of the two numbers.")


def _schedules(config: FairQueueConfig) -> Iterator[CheckMessage]:
    if not config.schedules:
        return  # returns without loading the engine, which a project without schedules does not need for its checks
    from django_fairque.engine.schedules.due_times import find_long_step
    from django_fairque.tasks.schedules import find_mistakes

    for name, problem in find_mistakes(config.schedules):
        hint = "SCHEDULES names registered tasks, with arguments that fit them."
        yield message("fairque.E010", f"the schedule {name!r} can't be used: {problem}", hint)
    for name, schedule in config.schedules.items():
        if problem := find_long_step(schedule.cron or ""):
            hint = "For an interval that does not fit, such as 90 minutes, use EVERY (seconds) instead of CRON."
            yield message("fairque.W019", f"the schedule {name!r} fires at other times than it seems: {problem}", hint)


def _early_sending(config: FairQueueConfig) -> Iterator[CheckMessage]:
    atomic = [alias for alias, database in settings.DATABASES.items() if database.get("ATOMIC_REQUESTS")]
    if atomic and not config.enqueue_on_commit:
        yield message(
            "fairque.W007",
            f"tasks are sent before the commit (ENQUEUE_ON_COMMIT), and every view runs inside a transaction "
            f"(ATOMIC_REQUESTS of the database {atomic[0]!r})",
            "A worker may run a task before it can see the rows, or after they were rolled back: leave ENQUEUE_ON_COMMIT at "
            "True, and give on_commit=False where it is meant.",
        )


def check_events(**_: Any) -> list[CheckMessage]:
    """Check for model events with unknown models, fields and tasks, and for deletions that only the database makes.
    Returns the messages.

    Mistakes are warnings here: an error would keep ``migrate`` and other commands from running.
    """
    from django_fairque.events import rules
    from django_fairque.events.event import DELETE

    hint = f"Nothing is enqueued when it happens. {EVENT_MISTAKE_HINT}"
    found = [message("fairque.E020", text, hint, is_error=False) for text in rules.mistakes()]
    deleted = {rule.model for rule in rules.rules() if rule.is_on and DELETE in rule.kinds}
    cascades = [warning for model in deleted if model is not None for warning in _cascades(model)]
    return [*found, *cascades]


EVENT_MISTAKE_HINT = "Correct it: fairque_worker does not start, and check --deploy fails."


def check_event_mistakes(**_: Any) -> list[CheckMessage]:
    """Check for model events with unknown models, fields and tasks. Returns one error that lists all mistakes."""
    from django_fairque.events import rules

    found = rules.mistakes()
    return [message("fairque.E020", "\n".join(found), EVENT_MISTAKE_HINT)] if found else []


def check_bulk_operations(**_: Any) -> list[CheckMessage]:
    """Check for managers of watched models whose bulk operations fire no model events. Returns one message for all
    models. A project that uses no bulk operations can silence it.
    """
    from django_fairque.events import EventQuerySetMixin, rules
    from django_fairque.events.event import CREATE, UPDATE, get_classes

    watched = {rule.model for rule in rules.rules() if rule.is_on and {CREATE, UPDATE} & rule.kinds}
    unseen = {}
    for model in sorted({model for one in watched if one is not None for model in get_classes(one)}, key=_label):
        names = [manager.name for manager in model._meta.managers if not _has_queryset(manager, EventQuerySetMixin)]
        if names and not model._meta.abstract:
            unseen[_label(model)] = names
    if not unseen:
        return []
    listed = "; ".join(f"{label} ({', '.join(names)})" for label, names in unseen.items())
    return [
        message(
            "fairque.W021",
            f"bulk_create, bulk_update and update of these managers fire no model event: {listed}",
            "Use EventQuerySet.as_manager(), or list EventQuerySetMixin before the base of the manager's queryset class. Silence "
            "this number if nothing changes these models in bulk.",
        )
    ]


def _label(model: type[models.Model]) -> str:
    return model._meta.label


def _has_queryset(manager: Any, kind: type) -> bool:
    return issubclass(getattr(manager, "_queryset_class", models.QuerySet), kind)


def _cascades(model: type[models.Model]) -> Iterator[CheckMessage]:
    """Return messages about foreign keys whose cascades happen in the database, as Django 6.1 permits: such deletions
    send no signals.
    """
    by_database = getattr(models, "DB_CASCADE", None)
    for subclass in apps.get_models():
        if not issubclass(subclass, model):
            continue
        for field in subclass._meta.concrete_fields:
            if by_database is not None and field.remote_field and field.remote_field.on_delete is by_database:
                yield message(
                    "fairque.W020",
                    f"objects of {subclass._meta.label} that go with their {field.name} are deleted by the database: their "
                    "model event on_delete does not fire then",
                    f"Use CASCADE for {subclass._meta.label}.{field.name}, or watch {field.related_model._meta.label}.",  # type: ignore[union-attr]
                )
