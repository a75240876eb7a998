"""From a call of a task's function to the engine's task: arguments, user, times, keys."""

from __future__ import annotations

import hashlib
import inspect
import json
import time
from functools import cached_property
from typing import TYPE_CHECKING, Any

from django_fairque.engine.model.durations import moment
from django_fairque.engine.model.errors import TaskValidationError, short

from .attribution import current_user_id
from .errors import TaskUsageError
from .options import TaskOptions, user_id

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from django_fairque.engine.model.options import QueueConfig
    from django_fairque.engine.model.task import Task

DEFAULT_USER = "default"
"""Whose the tasks are for which nobody is named, and that nobody's work enqueues: they share one user's fair part."""


class Caller:
    """The calls of one function."""

    def __init__(self, function: Callable[..., object], name: str, *, takes_items: bool) -> None:
        self.name = name
        self.takes_items = takes_items
        self._function = function

    @cached_property
    def signature(self) -> inspect.Signature:
        return inspect.signature(self._function)

    def check_declaration(self, options: TaskOptions) -> None:
        """What is wrong between the function and its options."""
        parameters = self.signature.parameters
        if next(iter(parameters), None) in ("self", "cls"):
            raise TaskUsageError(
                f"@task on {self.name}: it looks like a method, and a worker has no object to call it on; write a function"
            )
        if self.takes_items and not _takes_one(self.signature):
            raise TaskUsageError(
                f"@task on {self.name}: a batch task has one parameter, the list of items, got {self.signature}"
            )
        if not isinstance(options.user, str):
            return
        if self.takes_items:
            raise TaskUsageError(
                f"@task on {self.name}: the items of a batch task have no argument names: give user=lambda item: …, got "
                f"{options.user!r}"
            )
        parameter = parameters.get(options.user)
        if parameter is None or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise TaskUsageError(
                f"@task on {self.name}: user names the argument that holds the user; expected one of "
                f"{', '.join(parameters) or 'no arguments (there are none)'}, got {short(options.user)}"
            )

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> inspect.BoundArguments | None:
        """The arguments by parameter (None for a batch task's item); `TaskUsageError` if the call doesn't fit."""
        if self.takes_items:
            if len(args) == 1 and not kwargs:
                return None
            raise TaskUsageError(
                f"{self.name}.enqueue() takes one item of the batch, by position, got {len(args)} and {len(kwargs)} by name"
            )
        try:
            return self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TaskUsageError(f"{self.name}.enqueue(): {error}; its arguments are {self.signature}") from None

    def build(
        self,
        options: TaskOptions,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        config: QueueConfig,
        *,
        about: Mapping[str, Any] | None = None,
    ) -> Task:
        """The engine's task for one call, its payload encoded; nothing is sent.

        ``about`` (JSON) travels with the arguments; the function does not see it.

        Raises:
            TaskUsageError, TaskValidationError, TaskSerializationError: with the task's name.
        """
        from django_fairque.engine.model.task import Task

        bound = self.bind(args, kwargs)
        due, expiry = self._times(options)
        window = options.unique_for if options.unique_for is not None else options.debounce
        try:
            user = self._user(options, bound, args, kwargs)
            return Task.create(
                user,
                options.priority,
                {"args": args, "kwargs": kwargs, **({"about": about} if about else {})},
                task_id=options.task_id,
                name=self.name,
                max_retries=config.default_max_retries if options.max_retries is None else options.max_retries,
                execute_after=due,
                expires_at=expiry,
                sla=options.sla,
                timeout=options.timeout,
                unique_key="" if window is None else self._unique_key(user, bound, args),
                unique_for=options.unique_for,
                debounce=options.debounce,
                debounce_max_wait=options.debounce_max_wait,
                depends_on=options.depends_on,
                on_dependency_failure=options.on_dependency_failure,  # type: ignore[arg-type] # checked with the options
                max_payload_bytes=config.max_payload_bytes,
            )
        except TaskValidationError as error:
            raise type(error)(f"{self.name}.enqueue(): {error}") from error

    def _user(
        self, options: TaskOptions, bound: inspect.BoundArguments | None, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> str:
        if options.user_id is not None:
            return options.user_id
        if options.user is None:
            return current_user_id() or DEFAULT_USER
        if isinstance(options.user, str):
            assert bound is not None  # noqa: S101 - a batch task's user is no name: see check_declaration
            value = bound.arguments.get(options.user, self.signature.parameters[options.user].default)
            return user_id(value, f"the user (argument {options.user!r})")
        return user_id(options.user(*args, **kwargs), "what the user function returns")

    def _times(self, options: TaskOptions) -> tuple[float | None, float | None]:
        """When it may start and when it expires."""
        now = time.time()
        due = now + options.delay if options.delay is not None else moment(options.execute_after, "execute_after")
        expiry = now + options.expires if options.expires is not None else moment(options.expires_at, "expires_at")
        if due is not None and expiry is not None and expiry <= due:
            raise TaskUsageError(
                f"{self.name}.enqueue(): it would expire ({expiry - now:g} s from now) before it may start "
                f"({due - now:g} s from now)"
            )
        return due, expiry

    def _unique_key(self, user: str, bound: inspect.BoundArguments | None, args: Sequence[Any]) -> str:
        """The same for calls of this task for the same user with the same arguments, however they were written."""
        called: Any = list(args)
        if bound is not None:
            bound.apply_defaults()
            called = bound.arguments
        try:
            text = json.dumps([user, called], sort_keys=True, default=_name_of_type)
        except (TypeError, ValueError, RecursionError):
            return self.name  # the payload is no JSON either, and is about to be refused for it
        return f"{self.name}:{hashlib.blake2b(text.encode('utf-8', 'surrogatepass'), digest_size=16).hexdigest()}"


def _takes_one(signature: inspect.Signature) -> bool:
    parameters = list(signature.parameters.values())
    return len(parameters) == 1 and parameters[0].kind in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    )


def _name_of_type(value: object) -> str:
    """Stands for a default that is not JSON: its text may hold an address, its type is the same everywhere."""
    return f"<{type(value).__qualname__}>"
