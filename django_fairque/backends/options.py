"""``OPTIONS`` of the backend in the setting ``TASKS``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django.utils.module_loading import import_string

from django_fairque.engine.model.errors import short
from django_fairque.engine.model.options import nearest

from .compat import AnyTask, InvalidTaskBackend

UserOf = Callable[[AnyTask, "list[Any]", "dict[str, Any]"], object]
"""``(task, args, kwargs)`` -> whom it is for; None for nobody in particular."""

KNOWN = ("MAX_RETRIES", "USER")


@dataclass(frozen=True)
class BackendOptions:
    """Checked options."""

    user: UserOf | None = None
    max_retries: int = 0


def read_options(options: Mapping[str, Any], alias: str) -> BackendOptions:
    """The options of a backend; `InvalidTaskBackend` with everything that is wrong with them."""
    found = option_problems(options)
    if found:
        raise InvalidTaskBackend(f"OPTIONS of TASKS[{alias!r}]: {'; '.join(found)}")
    return BackendOptions(_user(options), max_retries(options))


def option_problems(options: Mapping[str, Any]) -> list[str]:
    """What is wrong, one sentence each."""
    return [*_unknown(options), *_wrong_user(options), *_wrong_retries(options)]


def max_retries(options: Mapping[str, Any]) -> int:
    """How often a failed task is tried again; 0 unless the options (when they are right) say more."""
    return 0 if _wrong_retries(options) else int(options.get("MAX_RETRIES", 0))


def _user(options: Mapping[str, Any]) -> UserOf | None:
    user = options.get("USER")
    found: UserOf | None = import_string(user) if isinstance(user, str) else user
    return found


def _unknown(options: Mapping[str, Any]) -> list[str]:
    sentences = []
    for name in options:
        if name not in KNOWN:
            near = nearest(str(name).upper(), KNOWN)
            hint = f"did you mean {near!r}?" if near else f"expected some of {', '.join(KNOWN)}"
            sentences.append(f"unknown option {name!r}; {hint}")
    return sentences


def _wrong_user(options: Mapping[str, Any]) -> list[str]:
    value = options.get("USER")
    if value is None or callable(value):
        return []
    wanted = "USER must be a callable of (task, args, kwargs), or its dotted path"
    if not isinstance(value, str):
        return [f"{wanted}; got {short(value)}"]
    try:
        found = import_string(value)
    except ImportError as error:
        return [f"{wanted}; {value!r} can't be imported ({error})"]
    return [] if callable(found) else [f"{wanted}; {value!r} is {short(found)}"]


def _wrong_retries(options: Mapping[str, Any]) -> list[str]:
    value = options.get("MAX_RETRIES", 0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 1000:
        return [f"MAX_RETRIES must be an integer from 0 to 1000, got {short(value)}"]
    return []
