"""Tasks by their names: two functions under one, queues that are not declared, schedules whose task can't be made, sending
before a commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.conf import settings

from .messages import configured, error, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.core.checks import CheckMessage

    from django_fairque.conf import FairQueueConfig


def check_tasks(**_: Any) -> list[CheckMessage]:
    """What is wrong between the registered tasks, and between them and the settings."""
    config = configured()
    return [
        *_duplicates(),
        *(() if config is None else (*_queues(config), *_schedules(config), *_early_sending(config))),
    ]


def _duplicates() -> Iterator[CheckMessage]:
    from django_fairque.tasks import registry

    for name, (first, second) in sorted(registry.duplicates().items()):
        yield error(
            "fairque.E011",
            f"two functions are registered as the task {name!r}: {first} and {second}",
            "Only one of them runs what either sends: rename one, or give it another name with @task(name=…).",
        )


def _queues(config: FairQueueConfig) -> Iterator[CheckMessage]:
    from django_fairque.tasks import registry

    for definition in filter(None, map(registry.find, registry.names())):
        if problem := _queue_problem(config, definition.options.queue):
            yield error(
                "fairque.E016",
                f"the task {definition.name!r} can't be enqueued: {problem}",
                "Declare the queue in QUEUES, or name a declared one in the task.",
            )


def _queue_problem(config: FairQueueConfig, name: str) -> str:
    from django_fairque.engine.model.errors import ConfigurationError

    try:
        config.queue_config(name)
    except ConfigurationError as undeclared:
        return str(undeclared)
    return ""


def _schedules(config: FairQueueConfig) -> Iterator[CheckMessage]:
    from django_fairque.tasks.schedules import mistakes_in

    for name, problem in mistakes_in(config.schedules):
        yield error(
            "fairque.E010",
            f"the schedule {name!r} can't be used: {problem}",
            "SCHEDULES names registered tasks, with arguments that fit them.",
        )


def _early_sending(config: FairQueueConfig) -> Iterator[CheckMessage]:
    atomic = [alias for alias, database in settings.DATABASES.items() if database.get("ATOMIC_REQUESTS")]
    if atomic and not config.enqueue_on_commit:
        yield warning(
            "fairque.W007",
            f"tasks are sent before the commit (ENQUEUE_ON_COMMIT), and every view runs inside a transaction "
            f"(ATOMIC_REQUESTS of the database {atomic[0]!r})",
            "A worker may run a task before it can see the rows, or after they were rolled back: leave ENQUEUE_ON_COMMIT at "
            "True, and give on_commit=False where it is meant.",
        )
