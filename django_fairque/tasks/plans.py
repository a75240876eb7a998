"""The plans of the settings ``PLANS`` and ``PLAN_OF``, and the version of the project's code that they belong to."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from inspect import iscoroutinefunction
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from asgiref.sync import sync_to_async
from django.db import close_old_connections
from django.utils.module_loading import import_string

from django_fairque.conf import current, get_config
from django_fairque.engine.model.errors import ConfigurationError, short, suggestion
from django_fairque.engine.users.plans import PLAN_CACHE_SECONDS, Plans
from django_fairque.safely import Interruption, get_logger, get_message, is_a, type_name
from django_fairque.tasks import registry

if TYPE_CHECKING:
    from django_fairque.conf.models import FairQueueConfig

logger = get_logger("django_fairque.tasks")

PlanOf = Callable[[str], "str | None"]


class _Current:
    """The plans of this process, which are read at their first use and again after a setting has changed."""

    plans: Plans | None = None
    is_read = False

    def reset(self) -> None:
        self.is_read = False


_current = _Current()
current.on_reset(_current.reset)


def read_plans() -> Plans | None:
    """Return the plans of this process; None if the setting ``PLANS`` is empty, or the configuration has mistakes."""
    if not _current.is_read:
        _current.plans, _current.is_read = _make_plans(), True
    return _current.plans


def _make_plans() -> Plans | None:
    try:
        config = get_config()
    except ConfigurationError:  # for queues that are made without one
        return None
    if not config.plans:
        return None
    texts = _plan_texts(config)
    find = None if config.plan_of is None else _PlanFinder(config.plan_of, texts)
    return Plans(texts, code_version(config), find, lambda function: sync_to_async(function)())


def _plan_texts(config: FairQueueConfig) -> dict[str, str]:
    return {name: plan.to_text(name) for name, plan in config.plans.items()}


def import_plan_of(path: str) -> PlanOf:
    """Return the function that ``PLAN_OF`` names. Raise `ConfigurationError` if it can't be called with a user's id."""
    try:
        found: PlanOf = import_string(path)
    except ImportError as error:
        raise ConfigurationError(
            f"PLAN_OF: expected the dotted path of a function, got {short(path)}: {error}"
        ) from error
    if not callable(found) or iscoroutinefunction(found):
        kind = "a coroutine function" if callable(found) else f"a {type(found).__name__}"
        raise ConfigurationError(f"PLAN_OF: expected a plain function that takes a user's id, {path!r} is {kind}")
    return found


class _PlanFinder:
    """Calls ``PLAN_OF``. An error costs no task: it is logged, at most once a minute, and the user keeps its limits."""

    def __init__(self, path: str, texts: dict[str, str]) -> None:
        self._path, self._texts = path, texts
        self._silent_until = 0.0

    def __call__(self, user_id: str) -> str | None:
        try:
            name = import_plan_of(self._path)(user_id)
        except Exception as error:
            if is_a(error, Interruption):
                raise
            with suppress(
                Exception
            ):  # a broken connection, in a thread that closes none itself, would make all later calls fail
                close_old_connections()
            if self._may_log():
                logger.warning(
                    "PLAN_OF (%s) raised %s: %s; tasks of user %r are sent without its plan, and its limits stay as they are",
                    *(self._path, type_name(error), get_message(error), user_id),
                )
            return None
        if name is None:
            return ""
        if not isinstance(name, str) or name not in self._texts:
            hint = suggestion(name, self._texts) if isinstance(name, str) else "expected the name of a plan, or None"
            if self._may_log():
                logger.error(
                    "PLAN_OF (%s) returned %s for user %r, and PLANS has no such plan (%s); the user's limits stay as they are",
                    *(self._path, short(name), user_id, hint),
                )
            return None
        return self._texts[name]

    def _may_log(self) -> bool:
        may_log = monotonic() >= self._silent_until
        if may_log:
            self._silent_until = monotonic() + PLAN_CACHE_SECONDS
        return may_log


def code_version(config: FairQueueConfig) -> str:
    """Return the version of the project's code that workers report: ``CODE_VERSION``, or a digest of the modules that declare
    tasks and of the plans.
    """
    if config.code_version:
        return config.code_version
    digest = _digest_of_tasks()
    if config.plans:
        digest = hashlib.sha256(f"{digest} {sorted(_plan_texts(config).values())}".encode()).hexdigest()[:7]
    return digest


@cache
def _digest_of_tasks() -> str:
    """Compute a digest of 7 digits of the modules that declare this process's tasks: it changes with their code. The digest is
    cached, because the process keeps the code with which it began."""
    digest, names = hashlib.sha256(), registry.modules()
    for name in names:
        digest.update(name.encode())
        # A module without a file, or with one that can't be read, counts with its name.
        with suppress(OSError, TypeError, ValueError):
            digest.update(Path(getattr(sys.modules.get(name), "__file__", "")).read_bytes())
    return digest.hexdigest()[:7] if names else ""
