"""Schedules that are declared in the configuration, brought to the queues. Workers do this when they start."""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Container, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from django.conf import settings

from django_fairque import conf
from django_fairque.engine.model.errors import FairQueueError, RedisConnectionError
from django_fairque.engine.model.priority import Priority
from django_fairque.engine.model.signature import sign_payload
from django_fairque.engine.schedules.schedule_ops import template_of

from . import registry
from .errors import TaskUsageError

if TYPE_CHECKING:
    from django_fairque.conf.sections import ScheduleConfig
    from django_fairque.engine.queue.queue import FairQueue

    from .pipelines import Step

logger = logging.getLogger("django_fairque.tasks")

SOURCE = "settings"


def sync_schedules(patience: float | None = None) -> None:
    """Make every queue's schedules agree with the configuration's ``SCHEDULES``.

    Declared ones are added or changed, those that are not declared any more are removed; schedules from code or from a
    command are left alone. What an operator has switched on or off stays so until the declaration changes.

    Args:
        patience: seconds for which a call is repeated when the server does not answer; as configured by default.

    Raises:
        TaskUsageError: a task is not registered, the arguments don't fit it, or its user function raises; the other schedules are
            kept all the same.
        RedisConnectionError: the server can't be reached.
    """
    config = conf.get_config()
    made = {name: _made(declared) for name, declared in config.schedules.items()}
    mistakes = {name: problem for name, problem in made.items() if isinstance(problem, str)}
    for queue_name in config.queues:
        mine = {
            name: (config.schedules[name], step)
            for name, step in made.items()
            if not isinstance(step, str) and step.options.queue == queue_name
        }
        queue = conf.get_queue(queue_name)
        _sync(queue if patience is None else queue.with_retry_timeout(patience), mine, keep=mistakes)
    if mistakes:
        raise TaskUsageError("; ".join(f"{name}: {problem}" for name, problem in mistakes.items()))


def mistakes_in(schedules: Mapping[str, ScheduleConfig]) -> list[tuple[str, str]]:
    """``(name, what is wrong)`` of those whose task can't be made."""
    made = {name: _made(declared) for name, declared in schedules.items()}
    return [(name, problem) for name, problem in made.items() if isinstance(problem, str)]


def _made(declared: ScheduleConfig) -> Step | str:
    """The call, for whom it found its user to be now, or why it can't be made."""
    try:
        args, kwargs = declared.args, declared.kwargs
        step = make_step(declared.task, args, kwargs, declared.queue, declared.user, declared.priority)
        return step.using(user_id=template_of(step)["user_id"])
    except FairQueueError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - whatever the project's own function raises
        return (
            f"the user function of {declared.task} raised {type(error).__name__}: {error}; fix it, or name the user in the "
            "schedule (USER), which then needs no function"
        )


def sync_or_log(patience: float | None = None) -> bool:
    """As `sync_schedules`; what is wrong is logged, for a worker has other things to do as well. False if the server can't be
    reached now, which is for the caller to say."""
    from django_fairque.engine.queue.executor import FINAL_ERRORS

    try:
        sync_schedules(patience)
    except FairQueueError as error:
        if isinstance(error, RedisConnectionError) and not isinstance(error, FINAL_ERRORS):
            return False
        logger.error("the schedules of SCHEDULES are not all in force: %s", error)  # noqa: TRY400 - it says it all
    return True


def make_step(
    task: str, args: Iterable[Any], kwargs: Mapping[str, Any], queue: str | None, user: str | None, priority: str | None
) -> Step:
    """Return the call that a schedule makes. Options that are None or empty are left to the task.

    Raises `FairQueueError` if the call can't be made.
    """
    options: dict[str, Any] = {"queue": queue, "user_id": user, "priority": Priority[priority] if priority else None}
    definition = registry.get(task).using(**{key: value for key, value in options.items() if value not in (None, "")})
    if definition.types is not None:  # settings, files and forms hold them as JSON
        args, kwargs = definition.types.coerce(list(args), kwargs)
    return definition.s(*args, **kwargs)


def _sync(queue: FairQueue, declared: Mapping[str, tuple[ScheduleConfig, Step]], keep: Container[str]) -> None:
    known = {each.name: each for each in queue.schedules.list()}
    for name, (config, step) in declared.items():
        digest = hashlib.blake2b(config.model_dump_json().encode(), digest_size=8).hexdigest()
        if name in known and known[name].declared == digest:
            # SECRET_KEY or SIGNING may have changed since it was signed.
            signed = sign_payload(
                known[name].signed_fields(queue.config.prefix, queue.name), queue.config.signing_key.read()
            )
            if hmac.compare_digest(signed, known[name].signature.encode()):
                continue
        options = config.model_dump(include={"cron", "every", "missed", "grace", "enabled"})
        if config.expires is not None:
            options["expires"] = config.expires
        zone = config.timezone or settings.TIME_ZONE or "UTC"
        queue.schedules.add(name, task=step, timezone=zone, source=SOURCE, declared=digest, **options)
    for schedule in known.values():
        if schedule.source == SOURCE and schedule.name not in declared and schedule.name not in keep:
            queue.schedules.remove(schedule.name)
