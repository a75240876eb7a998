"""Mistakes in the configuration itself, and what is allowed but hardly meant."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from django.core import mail
from pydantic import TypeAdapter

from .messages import error, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.core.checks import CheckMessage

    from django_fairque.engine.model.options import Mistake

# Kind of mistake -> number and what to do about it.
_MISTAKES = {
    "unknown": ("fairque.E001", "docs/configuration.md lists every key. Case does not matter."),
    "value": ("fairque.E002", "docs/configuration.md says what each key takes."),
    "conflict": ("fairque.E003", "Change one of the keys that contradict each other."),
    "file": (
        "fairque.E004",
        "CONFIG_FILE names a YAML file with the sections redis, worker, workers, queue, queues, schedules, monitor.",
    ),
    "server": ("fairque.E005", "Name the server in settings, in the file, or as FAIRQUE_REDIS__URL."),
    "cache": ("fairque.E006", "Name the server itself (URL, or HOST and PORT) instead of a cache."),
    "timing": (
        "fairque.E012",
        "CRON is minute, hour, day of month, month and day of week, and must come true some day.",
    ),
}


def check_configuration(**_: Any) -> list[CheckMessage]:
    """Every mistake at once; that other checks find nothing then is no good sign."""
    from django_fairque.conf import get_config
    from django_fairque.engine.model.options import InvalidOptionsError

    try:
        get_config()
    except InvalidOptionsError as invalid:
        mistakes = [_error(mistake) for mistake in invalid.mistakes if not _is_fine_in_tests(mistake)]
        return [*mistakes, *_overlooked_variables()]
    return [*_overlooked_variables(), *_obsolete_keys(), *_reduced_intervals()]


def _error(mistake: Mistake) -> CheckMessage:
    number, hint = _MISTAKES[mistake.kind]
    return error(number, str(mistake), hint)


def _is_fine_in_tests(mistake: Mistake) -> bool:
    # A test run sets DEBUG to False, and with it a project loses the server it develops on. Most tests never need
    # one; those that do get the error from get_queue(). Django's documented sign of a test run is the outbox.
    return mistake.kind == "server" and hasattr(mail, "outbox")


def _overlooked_variables() -> Iterator[CheckMessage]:
    from django_fairque.conf.sources import find_misspelled_variables

    for name, meant in find_misspelled_variables(os.environ):
        yield warning(
            "fairque.W001",
            f"the environment variable {name} is not read",
            f"Did you mean {meant}? Two underscores part the levels.",
        )


def _obsolete_keys() -> Iterator[CheckMessage]:
    from django_fairque.conf.sources import obsolete_keys

    for key, replacement in obsolete_keys().items():
        yield warning("fairque.W018", f"{key} is obsolete and has no effect: {replacement}", "Remove it.")


def _reduced_intervals() -> Iterator[CheckMessage]:
    """Sweep intervals above the largest one, which was used instead."""
    from django_fairque.conf.sources import written_entries
    from django_fairque.engine.model.options import MAX_SWEEP_INTERVAL_SECONDS, Number

    for path, entry in written_entries().items():
        if path[:1] in (("queue",), ("queues",)) and path[-1] == "sweep_interval":
            seconds: float = TypeAdapter(Number).validate_python(entry.value)
            if seconds > MAX_SWEEP_INTERVAL_SECONDS:
                yield warning(
                    "fairque.W015",
                    f"{entry.key} is {seconds:g} seconds and is reduced to {MAX_SWEEP_INTERVAL_SECONDS:g}",
                    f"Set SWEEP_INTERVAL to at most {MAX_SWEEP_INTERVAL_SECONDS:g}, or leave it out.",
                )
