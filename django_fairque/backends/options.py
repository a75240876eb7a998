"""The ``OPTIONS`` of the backend: options for all of its tasks, and in ``TASK_OPTIONS`` options for single tasks by
module path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property, partial
from typing import Any, overload

from django.conf import settings
from django.utils.module_loading import import_string

from django_fairque.backends.compat import AnyTask
from django_fairque.backends.results import get_priority_class
from django_fairque.backends.running import ResultBackoff
from django_fairque.engine.model.errors import ConfigurationError, nearest, short
from django_fairque.engine.model.priority import Priority
from django_fairque.safely import get_logger
from django_fairque.tasks import middleware
from django_fairque.tasks.options import DeclaredOptions, TaskOptions, checked_option, contradictions

logger = get_logger("django_fairque.tasks")

UserOf = Callable[[AnyTask, "list[Any]", "dict[str, Any]"], object]
"""A function ``(task, args, kwargs)`` that returns the user of the call; None for no particular user."""

BY_TASK = "TASK_OPTIONS"
NOT_DECLARABLE = {"name", "batch_wait", "on_dependency_failure", "task_id", "depends_on"}
"""Options of ``@django_fairque.task`` that tasks of `django.tasks` do not support: other names, batches, chosen ids and
dependencies."""
OF_TASKS = tuple(
    sorted(
        name.upper()
        for name in (DeclaredOptions.__optional_keys__ - NOT_DECLARABLE) | {"database", "on_commit", "max_attempts"}
    )
)
ALIASES = {"MAX_ATTEMPTS": "MAX_RETRIES"}
"""Option names of Django's proposal for retries (https://github.com/django/new-features/issues/142). The number of
attempts is one more than the number of retries."""
OF_SINGLE_TASKS = ("PRIORITY", "QUEUE")
"""Options that every declaration of `django.tasks` sets itself. A value for all tasks would override all
declarations."""
LANE_BOUNDS = {"URGENT_PRIORITY": (1, 100), "BULK_PRIORITY": (-100, -1)}
"""Options that assign priorities of `django.tasks` from a bound on to a lane, and the permitted values of each
bound."""
OF_BACKEND = (*(name for name in OF_TASKS if name not in OF_SINGLE_TASKS), *LANE_BOUNDS, BY_TASK)
WILDCARDS = frozenset("*?[")
MAX_ATTEMPTS = 1001


@dataclass(frozen=True)
class PathOptions:
    """The options for the tasks with one module path."""

    options: TaskOptions = field(default_factory=lambda: TaskOptions(max_retries=0))
    """All options except ``user``, ``queue`` and ``priority``, which have fields of their own that keep the given
    form."""
    user: UserOf | str | None = None
    """The callable that returns the user, or its dotted path. The path is imported when a task is sent, because its
    module may not be fully imported when the task is declared."""
    queue: str | None = None
    """The queue that replaces the declared queue; None if it is not replaced."""
    priority: int | None = None
    """The priority in `django.tasks`, from -100 to 100; None if it is not replaced."""
    urgent_priority: int | None = None
    """The lowest priority whose tasks are in the urgent lane; None if no priority is."""
    bulk_priority: int | None = None
    """The highest priority whose tasks are in the bulk lane; None if no priority is."""
    by_path: frozenset[str] = frozenset()
    """Names of the options that a path or a pattern sets. A declaration does not override these options."""
    problem: str = ""
    """A sentence about options of several patterns that contradict each other; empty if there are none. If there is a
    contradiction, the options are the defaults."""

    @cached_property
    def user_of(self) -> UserOf | None:
        """The callable in `user`, imported if it was given as a path."""
        return import_string(self.user) if isinstance(self.user, str) else self.user

    def for_task(self, task: AnyTask, number: int) -> TaskOptions:
        """Return the options of a call of a ``task``. ``number`` is the task's priority in `django.tasks`. Tasks in the
        urgent and bulk lanes have no priority.
        """
        lane = self.options.lane
        if lane is None and self.urgent_priority is not None and number >= self.urgent_priority:
            lane = "urgent"
        elif lane is None and self.bulk_priority is not None and number <= self.bulk_priority:
            lane = "bulk"
        priority = get_priority_class(number) if lane in (None, "normal") else Priority.NORMAL
        declared: dict[str, Any] = {}
        if (attempts := getattr(task, "max_attempts", None)) is not None and "MAX_RETRIES" not in self.by_path:
            declared["max_retries"] = attempts - 1
        if (backoff := getattr(task, "backoff", None)) is not None and "BACKOFF" not in self.by_path:
            declared["backoff"] = ResultBackoff(backoff)
        return replace(self.options, lane=lane, priority=priority, **declared)


class BackendOptions:
    """The checked options of a backend. ``given`` is the value of ``OPTIONS``. Options with mistakes are left out, and
    `problems` lists the mistakes.
    """

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._mistakes: list[str] = []
        self._imports: list[tuple[str, Callable[[str], object], str]] = []
        """For each dotted path in the options: the place of the option, the function that imports and checks the path,
        and the path."""
        for_all = {name: value for name, value in given.items() if name != BY_TASK}
        self._entries = [("", self._check_options("", for_all, OF_BACKEND))]
        by_task = given.get(BY_TASK, {})
        if not isinstance(by_task, Mapping):
            self._mistakes.append(f"{BY_TASK} must be a mapping of task paths to options, got {short(by_task)}")
            by_task = {}
        entries = []
        for pattern, options in by_task.items():
            if not isinstance(pattern, str) or not pattern:
                self._mistakes.append(f"{BY_TASK}: a task path or pattern must be a text, got {short(pattern)}")
            elif not isinstance(options, Mapping):
                self._mistakes.append(f"{BY_TASK}[{pattern!r}] must be a mapping of options, got {short(options)}")
            else:
                entries.append((pattern, self._check_options(f"{BY_TASK}[{pattern!r}]: ", options, OF_TASKS)))
        self._entries += sorted(entries, key=lambda entry: _specificity(entry[0]))
        self._found: dict[str, PathOptions] = {}

    @cached_property
    def problems(self) -> list[str]:
        """One sentence for each mistake. Reading this property imports the dotted paths in the options."""
        found = [(where, _find_problem(check, path)) for where, check, path in self._imports]
        return [*self._mistakes, *(f"{where}{problem}" for where, problem in found if problem)]

    def get_options(self, path: str) -> PathOptions:
        """Return the options of a task. If several patterns match, the most specific pattern with an option sets it.
        ``path`` is the task's module path.
        """
        found = self._found.get(path)
        if found is None:
            merged: dict[str, Any] = {}
            by_path: set[str] = set()
            for pattern, options in self._entries:
                if not pattern or fnmatchcase(path, pattern):
                    merged |= options
                    by_path |= options.keys() if pattern else set()
            found = self._found[path] = replace(_path_options(merged), by_path=frozenset(by_path))
        return found

    def list_unmatched_patterns(self, paths: Iterable[str]) -> list[str]:
        """Return the patterns that match none of ``paths``, which are the module paths of all tasks."""
        known = list(paths)
        patterns = [pattern for pattern, _ in self._entries if pattern]
        return [pattern for pattern in patterns if not any(fnmatchcase(path, pattern) for path in known)]

    def _check_options(self, where: str, given: Mapping[str, Any], known: tuple[str, ...]) -> dict[str, Any]:
        checked: dict[str, Any] = {}
        for name, value in given.items():
            if name not in known:
                self._mistakes.append(f"{where}{_unknown(name, known)}")
                continue
            kept = ALIASES.get(name, name)
            try:
                if kept != name and kept in given:
                    raise ValueError(f"{name} and {kept} say the same thing in two ways: give one of them")  # noqa: TRY301
                checked[kept] = _checked_value(name, value)
            except ValueError as error:
                self._mistakes.append(f"{where}{error}")
            else:
                self._imports += [(where, *path) for path in _list_paths(name, value)]
        if problem := _path_options(checked).problem:
            self._mistakes.append(f"{where}{problem}")
            return {}
        return checked


def _specificity(pattern: str) -> tuple[bool, int]:
    """Return the sort key of a pattern. The most specific pattern comes last: a path without wildcards, or else the
    pattern with most other characters.
    """
    return not WILDCARDS & set(pattern), sum(part not in WILDCARDS for part in pattern)


def _path_options(merged: Mapping[str, Any]) -> PathOptions:
    names = ("USER", *OF_SINGLE_TASKS, *LANE_BOUNDS)
    special = {name.lower(): value for name, value in merged.items() if name in names}
    given = {name.lower(): value for name, value in merged.items() if name.lower() not in special}
    options = replace(TaskOptions(max_retries=0), **given)
    problem = "; ".join(contradictions(replace(options, priority=get_priority_class(merged.get("PRIORITY", 0)))))
    return PathOptions(problem=problem) if problem else PathOptions(options, **special)


def _unknown(name: object, known: tuple[str, ...]) -> str:
    if name in OF_SINGLE_TASKS:
        return f"{name} is an option of single tasks: give it in {BY_TASK}, under their paths"
    near = nearest(str(name).upper(), known)
    hint = f"did you mean {near!r}?" if near else f"expected some of {', '.join(known)}"
    return f"unknown option {name!r}; {hint}"


def _checked_value(name: str, value: Any) -> Any:
    special = {"USER": _user, "PRIORITY": _priority, "RETRY_ON": _retry_on, "BACKOFF": _backoff, "DATABASE": _database}
    if name in special:
        return special[name](value)
    if name in LANE_BOUNDS:
        least, most = LANE_BOUNDS[name]
        return None if value is None else _whole_number(name, value, least, most)
    if name == "MAX_ATTEMPTS":
        return None if value is None else checked_attempts(value, name) - 1
    return checked_option(name.lower(), value, name)


def _list_paths(name: str, value: Any) -> list[tuple[Callable[[str], object], str]]:
    """Yield the dotted paths in the value of an option, each with the function that imports and checks the path."""
    several = value if isinstance(value, (tuple, list)) else (value,)
    callables = {"USER": _USER_EXPECTED, "BACKOFF": _BACKOFF_EXPECTED}
    checks: dict[str, Callable[[str], object]] = {
        option: partial(_import, expected=expected) for option, expected in callables.items()
    }
    check = {**checks, "RETRY_ON": _imported_error, "MIDDLEWARE": middleware.load}.get(name)
    return [(check, path) for path in several if isinstance(path, str)] if check else []


def _find_problem(check: Callable[[str], object], path: str) -> str:
    try:
        check(path)
    except (ValueError, ConfigurationError) as error:
        return str(error)
    return ""


def _user(value: Any) -> Any:
    if value is not None and not callable(value) and not isinstance(value, str):
        raise ValueError(f"{_USER_EXPECTED}; got {short(value)}")
    return value


_USER_EXPECTED = "USER must be a callable of (task, args, kwargs), or its dotted path"


def _import(path: str, expected: str, is_expected: Callable[[Any], bool] = callable) -> Any:
    try:
        found = import_string(path)
    except ImportError as error:
        raise ValueError(f"{expected}; {path!r} can't be imported ({error})") from None
    if not is_expected(found):
        raise ValueError(f"{expected}; {path!r} is {short(found)}")
    return found


def _priority(value: Any) -> int:
    return _whole_number("PRIORITY", value, -100, 100)


def _whole_number(name: str, value: Any, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(
            f"{name} must be a whole number from {least} to {most}, as the priorities of django.tasks, got {short(value)}"
        )
    return value


def _retry_on(value: Any) -> Sequence[type[BaseException]]:
    several = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    classes = [error_class for error_class in several if not isinstance(error_class, str)]
    if classes or not several:
        checked_option("retry_on", tuple(classes), "RETRY_ON")
    return several if len(classes) == len(several) else ImportedErrors(several)


def _imported_error(path: str) -> type[BaseException]:
    found: type[BaseException] = _import(
        path,
        "RETRY_ON must name exception classes",
        lambda kind: isinstance(kind, type) and issubclass(kind, BaseException),
    )
    return found


def _error_class(given: type[BaseException] | str) -> type[BaseException] | None:
    try:
        return _imported_error(given) if isinstance(given, str) else given
    except ValueError:
        logger.exception("an exception of RETRY_ON is left out")
        return None


class ImportedErrors(Sequence[type[BaseException]]):
    """Exception classes that were given as classes or dotted paths. The paths are imported when a task first fails.

    A path that can't be imported is left out; the system check reports it.
    """

    def __init__(self, given: Sequence[Any]) -> None:
        self._given = given

    @cached_property
    def _classes(self) -> list[type[BaseException]]:
        return [found for entry in self._given if (found := _error_class(entry)) is not None]

    @overload
    def __getitem__(self, index: int) -> type[BaseException]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[type[BaseException]]: ...
    def __getitem__(self, index: Any) -> Any:
        return self._classes[index]

    def __len__(self) -> int:
        return len(self._classes)


_BACKOFF_EXPECTED = (
    "BACKOFF must be a mapping of base, cap, jitter, or a callable of (error, task_result), or its dotted path"
)


def _backoff(value: Any) -> Any:
    if callable(value) or isinstance(value, str):
        return ResultBackoff(value)
    if value is not None and not isinstance(value, Mapping):
        raise ValueError(f"{_BACKOFF_EXPECTED}; got {short(value)}")
    return checked_option("backoff", value, "BACKOFF")


def checked_attempts(value: object, name: str) -> int:
    """Return a number of attempts. Raises `ValueError` if it is not a whole number from 1 to 1001."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_ATTEMPTS:
        raise ValueError(f"{name} must be a whole number from 1 to {MAX_ATTEMPTS}, got {short(value)}")
    return value


def _database(value: Any) -> Any:
    if value is not None and value not in settings.DATABASES:
        known = ", ".join(map(repr, settings.DATABASES))
        raise ValueError(f"DATABASE must be an alias of DATABASES: expected one of {known}, got {short(value)}")
    return value
