"""Schedules that the configuration declares. Workers write these schedules to the queues when they start."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any

from django.conf import settings

from django_fairque import conf
from django_fairque.engine.model.errors import FairQueueError, RedisConnectionError
from django_fairque.engine.model.priority import Priority
from django_fairque.engine.schedules import declarations
from django_fairque.engine.schedules.declarations import DeclaredSchedule, DeclaredVersion
from django_fairque.engine.schedules.schedule_ops import DECLARED_SOURCE, extract_template
from django_fairque.safely import get_logger

from . import registry
from .errors import TaskUsageError

if TYPE_CHECKING:
    from django_fairque.conf.sections import ScheduleConfig
    from django_fairque.engine.queue.queue import FairQueue

    from .pipelines import Step

logger = get_logger("django_fairque.tasks")

SOURCE = DECLARED_SOURCE
ADOPTER = "adopt"
"""The worker id under which an adopted version stays in force until a worker with this version starts."""
MAX_DEPLOYMENT_SECONDS = 900
"""Maximum seconds of a deployment, in which workers of two versions run at the same time."""


class DeclaredSchedules:
    """The configuration's ``SCHEDULES``, which are written to a queue if this version of the configuration is in force
    on the queue.

    Declared schedules are added or changed, and schedules that are no longer declared are removed; other schedules
    stay. If an operator switches a schedule on or off, this remains until the declaration of the schedule changes.

    Args:
        worker: the id of the worker that runs with these declarations; empty (the default) without a worker.
        patience: seconds for which a call is repeated when the server does not answer; as configured by default.
    """

    def __init__(self, worker: str = "", patience: float | None = None) -> None:
        self._config = conf.get_config()
        self.version = declarations.version_name(self._config.code_version, _digest_schedules(self._config.schedules))
        self._worker, self._patience = worker, patience
        self._applied: dict[str, int] = {}
        """The number of this version when its schedules were written to a queue, by queue; 0 if another version was in
        force."""
        self._outvoted_since: dict[str, float] = {}
        self._last_error = ""
        self._steps: dict[str, Step | str] | None = None
        """The call that a schedule makes, or the error that prevents it, by schedule. The calls are kept, so that user
        functions run only once for all queues."""

    def update(self) -> None:
        """Report that this version is running, and write its schedules to each queue on which the version is now in
        force.

        Raises:
            TaskUsageError: a task is not registered, the arguments don't fit it, or its user function raises. The other
                schedules are written nevertheless.
            RedisConnectionError: the server can't be reached.
        """
        mistakes: dict[str, str] = {}
        self._steps = None
        for queue_name in self._config.queues:
            queue = self._queue(queue_name)
            counting = queue.schedules.report_version(
                self.version, self._worker, action="renew" if queue_name in self._applied else "start"
            )
            if counting.version != self.version:
                self._warn(queue_name, counting)
                self._applied[queue_name] = 0
            elif self._applied.get(queue_name) != counting.number:
                mistakes |= self._apply(queue, counting)
        if mistakes:
            raise TaskUsageError("; ".join(f"{name}: {problem}" for name, problem in mistakes.items()))

    def adopt(self, queue_name: str) -> None:
        """Put this version's schedules in force on a queue, even if another version was deployed later. Raises the same
        errors as `update`.
        """
        queue = self._queue(queue_name)
        mistakes = self._apply(queue, queue.schedules.report_version(self.version, ADOPTER, action="adopt"))
        if mistakes:
            raise TaskUsageError("; ".join(f"{name}: {problem}" for name, problem in mistakes.items()))

    def leave(self) -> None:
        """Report that this worker stops. If the server can't be reached, the worker's last report expires on the
        server.
        """
        with suppress(FairQueueError):
            for queue_name in self._config.queues:
                self._queue(queue_name).schedules.report_version(self.version, self._worker, action="leave")

    def update_or_log(self) -> bool:
        """Call `update`, and log a mistake once instead of raising it, because the worker must continue. Return False
        if the server can't be reached; the caller logs this.
        """
        from django_fairque.engine.queue.executor import FINAL_ERRORS

        try:
            self.update()
        except FairQueueError as error:
            if isinstance(error, RedisConnectionError) and not isinstance(error, FINAL_ERRORS):
                return False
            if str(error) != self._last_error:
                logger.error("the schedules of SCHEDULES are not all in force: %s", error)  # noqa: TRY400 - it says it all
            self._last_error = str(error)
        return True

    def _queue(self, name: str) -> FairQueue:
        queue = conf.get_queue(name)
        return queue if self._patience is None else queue.with_retry_timeout(self._patience)

    def _apply(self, queue: FairQueue, counting: DeclaredVersion) -> dict[str, str]:
        """Write the schedules to a queue, and return the mistakes by schedule."""
        schedules = self._config.schedules
        if self._steps is None:
            self._steps = {name: _make_call(declared) for name, declared in schedules.items()}
        made = self._steps
        mistakes = {name: problem for name, problem in made.items() if isinstance(problem, str)}
        mine = {
            name: _declaration(schedules[name], step)
            for name, step in made.items()
            if not isinstance(step, str) and step.options.queue == queue.name
        }
        if queue.schedules.declare(mine, counting, keep=mistakes):
            if queue.name in self._applied:
                logger.info(
                    "queue %s: the declared schedules of this worker are in force, of version %s",
                    *(queue.name, declarations.display_version(self.version)),
                )
            self._applied[queue.name] = counting.number
            self._outvoted_since.pop(queue.name, None)
        return mistakes

    def _warn(self, queue: str, counting: DeclaredVersion) -> None:
        """Log a warning at once when another version is in force, and again after `MAX_DEPLOYMENT_SECONDS`, because no
        deployment takes that long.
        """
        if declarations.have_equal_declarations(self.version, counting.version):
            return
        own, other = map(declarations.display_version, (self.version, counting.version))
        if queue not in self._outvoted_since:
            self._outvoted_since[queue] = monotonic()
            logger.warning(
                "queue %s: the declared schedules of this worker (version %s) are not in force: version %s was deployed later; "
                "if it should not count, run 'manage.py fairque_schedule adopt' with the code of this worker",
                *(queue, own, other),
            )
        elif monotonic() - self._outvoted_since[queue] > MAX_DEPLOYMENT_SECONDS:
            self._outvoted_since[queue] = math.inf
            logger.warning(
                "queue %s: workers of version %s (in force) and %s have declared different schedules for %d minutes; if they are "
                "two services, declare all schedules of the queue in both, or give each service a queue",
                *(queue, other, own, MAX_DEPLOYMENT_SECONDS // 60),
            )


def sync_schedules(patience: float | None = None) -> None:
    """Write the configuration's ``SCHEDULES`` to every queue, as a starting worker does. Raises the same errors as
    `DeclaredSchedules.update`.
    """
    DeclaredSchedules(patience=patience).update()


def _digest_schedules(schedules: Mapping[str, ScheduleConfig]) -> str:
    text = "\n".join(f"{name}={_digest(schedules[name])}" for name in sorted(schedules))
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def _digest(declared: ScheduleConfig) -> str:
    return hashlib.blake2b(declared.model_dump_json().encode(), digest_size=8).hexdigest()


def _declaration(declared: ScheduleConfig, step: Step) -> DeclaredSchedule:
    options = declared.model_dump(include={"cron", "every", "missed", "catch_up", "overlap", "jitter", "enabled"})
    if declared.expires is not None:
        options["expires"] = declared.expires
    options["timezone"] = declared.timezone or settings.TIME_ZONE or "UTC"
    return DeclaredSchedule(step, options, _digest(declared))


def find_mistakes(schedules: Mapping[str, ScheduleConfig]) -> list[tuple[str, str]]:
    """Return ``(name, mistake)`` for each schedule whose call can't be made."""
    made = {name: _make_call(declared) for name, declared in schedules.items()}
    return [(name, problem) for name, problem in made.items() if isinstance(problem, str)]


def _make_call(declared: ScheduleConfig) -> Step | str:
    """Return the call of a schedule with its current user, or the error that prevents it."""
    try:
        args, kwargs = declared.args, declared.kwargs
        step = make_step(declared.task, args, kwargs, declared.queue, declared.user, declared.priority, declared.lane)
        return step.using(user_id=extract_template(step)["user_id"])
    except FairQueueError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - whatever the project's own function raises
        return (
            f"the user function of {declared.task} raised {type(error).__name__}: {error}; fix it, or name the user in the "
            "schedule (USER), which then needs no function"
        )


def make_step(
    task: str,
    args: Iterable[Any],
    kwargs: Mapping[str, Any],
    queue: str | None,
    user: str | None,
    priority: str | None,
    lane: str | None = None,
) -> Step:
    """Return the call that a schedule makes. Options that are None or empty are not set, so the task's own options
    apply.

    Raises `FairQueueError` if the call can't be made.
    """
    options: dict[str, Any] = {"queue": queue, "user_id": user, "lane": lane}
    options["priority"] = Priority[priority] if priority else None
    definition = registry.get(task).using(**{key: value for key, value in options.items() if value not in (None, "")})
    if definition.types is not None:  # settings, files and forms contain these values as JSON
        args, kwargs = definition.types.coerce(list(args), kwargs)
    return definition.s(*args, **kwargs)
