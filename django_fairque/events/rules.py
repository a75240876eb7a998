"""`Rule`: an event of a model's objects enqueues a task."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Union

from django.db.models import Value

from django_fairque.engine.model import payload as json_payload
from django_fairque.engine.model.errors import ConfigurationError
from django_fairque.safely import get_logger
from django_fairque.tasks import registry, sending
from django_fairque.tasks.context import current_task
from django_fairque.tasks.errors import TaskUsageError
from django_fairque.tasks.options import TaskOptions, user_id

from .event import Event, get_model, is_historical

if TYPE_CHECKING:
    from django.db.models import Model
    from django.dispatch import Signal

    from django_fairque.engine.model.task import Task
    from django_fairque.tasks.definition import AnyDefinition
    from django_fairque.tasks.value_types import CallTypes

    from .conditions import Condition


_everything = object()
_suppressed: ContextVar[tuple[object, ...]] = ContextVar("fairque_suppressed_events", default=())


@contextmanager
def suppress_events(*models: type[Model] | str) -> Iterator[None]:
    """Fire no events of these models inside a ``with`` block. Yields None.

    ``models`` are classes or their labels (``"shop.Order"``); children and proxies count too. Without ``models``, no
    events of any model fire. Raises `TaskUsageError` if a value is not a model.
    """
    try:
        found: tuple[object, ...] = tuple(map(get_model, models)) or (_everything,)
    except LookupError as error:
        raise TaskUsageError(f"suppress_events: {error}") from None
    token = _suppressed.set((*_suppressed.get(), *found))
    try:
        yield
    finally:
        _suppressed.reset(token)


def is_suppressed(model: type[Model]) -> bool:
    return any(
        suppressed is _everything or (isinstance(suppressed, type) and issubclass(model, suppressed))
        for suppressed in _suppressed.get()
    )


logger = get_logger("django_fairque.events")

_key = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
"""Encode a request to enqueue a task as text. Equal requests have equal texts, so that a repeated request is
recognized."""

Argument = Union[str, Value, Callable[[Event], Any], Any]  # noqa: UP007 - evaluated on 3.10 too
"""An argument of an event's task: a field path, a literal in ``django.db.models.Value``, a callable of the event, or
any other value, which is passed unchanged."""


@dataclass(eq=False)
class Rule:
    """One declared event with its task. ``model`` is known when the apps are loaded; `activation` sets it and then
    ``is_on``.
    """

    name: str
    kinds: frozenset[str]
    target: type[Model] | str | None
    task: AnyDefinition | str
    when: Condition | None = None
    user: str | Value | Callable[[Event], Any] | None = None
    args: tuple[Argument, ...] = ()
    kwargs: Mapping[str, Argument] = field(default_factory=dict)
    bind: Callable[[Event], Any] | None = None
    """A function that returns all arguments of the task: a tuple, or a mapping of keyword arguments."""
    options: Mapping[str, Any] = field(default_factory=dict)
    reentrant: bool = False
    relation: str = ""
    """The many-to-many field to which the rule applies; empty for other rules."""
    actions: frozenset[str] = frozenset()
    signal: Signal | None = None
    sender: Any = None
    model: type[Model] | None = None
    is_on: bool = False
    problems: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"<event {self.name}>"

    @property
    def task_name(self) -> str:
        return self.task if isinstance(self.task, str) else self.task.name

    @cached_property
    def definition(self) -> AnyDefinition:
        """The task with the options of this event. Raises `TaskNotRegisteredError` if no task with this name is
        registered.
        """
        found = registry.get(self.task) if isinstance(self.task, str) else self.task
        return found.using(**self.options) if self.options else found

    def fire(self, event: Event) -> None:
        """Enqueue the task if the condition of the event is true. Values of the object are read now, not at the
        commit.
        """
        if is_suppressed(event.model) or (self.when is not None and not self.when(event)):
            return
        definition = self.definition
        args, kwargs = self._arguments(event, definition.types)
        user = self._user(event)
        try:
            stored = (args, kwargs) if definition.types is None else definition.types.dump(args, kwargs)
            key = _key((user, *stored))
        except (TypeError, ValueError):
            definition.build(args, kwargs)  # raises an error that explains the mistake
            raise
        if not self.reentrant and self._is_its_own_task(definition, *stored):
            logger.debug("%s: task %s has done this itself", self, definition.name)
            return

        def make() -> Task:
            return (definition if user is None else definition.using(user_id=user)).build(args, kwargs)

        try:
            sending.send_for_event(self.name, key, self._get_options(event.using), make)
        # the system checks report this; the code that saves an object can't correct it
        except ConfigurationError as error:
            logger.error("%s: task %s was not enqueued: %s", self, definition.name, error)  # noqa: TRY400 - it says all

    def _get_options(self, using: str) -> TaskOptions:
        cache: dict[str, TaskOptions] = self.__dict__.setdefault("_options_by_database", {})
        found = cache.get(using)
        if found is None:
            found = cache[using] = replace(self.definition.options, database=using)
        return found

    def _arguments(self, event: Event, types: CallTypes | None) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Return the arguments of the task. The value of a field is converted to JSON, unless the task's parameter has
        a type that JSON lacks.
        """
        if self.bind is not None:
            given = self.bind(event)
            if isinstance(given, Mapping):
                return (), dict(given)
            return (tuple(given) if isinstance(given, (tuple, list)) else (given,)), {}
        if types is None:
            args = tuple(_bind(event, argument) for argument in self.args)
            return args, {name: _bind(event, argument) for name, argument in self.kwargs.items()}
        return types.coerce(
            [_bind(event, argument, is_typed=types.converts(index)) for index, argument in enumerate(self.args)],
            {name: _bind(event, argument, is_typed=types.converts(name)) for name, argument in self.kwargs.items()},
        )

    def _user(self, event: Event) -> str | None:
        """Return the user of the task. None if the task's own options determine the user."""
        if self.user is None:
            return None
        value = event.value(self.user) if isinstance(self.user, str) else _bind(event, self.user)
        return None if value is None else user_id(getattr(value, "pk", value), f"the user of {self!r}")

    @staticmethod
    def _is_its_own_task(definition: AnyDefinition, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Return whether the event would enqueue the same task that is running. Without this check, a task that saves
        its own object would never end.
        """
        running = current_task()
        if running.name != definition.name:
            return False
        payload = json_payload.dumps({"args": args, "kwargs": kwargs})
        sent = [context.payload_bytes for context in running.batch or (running,)]
        with_metadata = payload[:-1] + b',"'  # metadata, for example headers, follows the arguments
        return any(sent_payload == payload or sent_payload.startswith(with_metadata) for sent_payload in sent)


def _bind(event: Event, argument: Argument, *, is_typed: bool = False) -> Any:
    if isinstance(argument, str):
        value = event.value(argument)
    elif isinstance(argument, Value):
        value = argument.value
    else:
        return argument(event) if callable(argument) else argument
    if is_typed:  # keep the type of a related object's key
        return getattr(value, "pk", value) if hasattr(value, "_meta") else value
    return plain(value)


def plain(value: Any) -> Any:
    """Return a field's value in JSON form: keys of objects, UUIDs, numbers and moments are converted as Django's
    serializer does.
    """
    if value is None or isinstance(value, (str, int, float, bool, list, dict)):
        return value
    if isinstance(value, tuple):  # a composite primary key is a tuple
        return tuple(map(plain, value))
    from django.core.serializers.json import DjangoJSONEncoder
    from django.db.models import Model

    if isinstance(value, Model):
        return plain(value.pk)
    try:
        return DjangoJSONEncoder().default(value)
    except TypeError:
        return value  # the check of the task's arguments explains which types JSON can represent


class _RuleRegistry:
    """All rules of this process."""

    def __init__(self) -> None:
        self.rules: list[Rule] = []
        self.is_ready = False
        """Whether the models are loaded, so that new rules are switched on at once."""
        self.of_class: dict[type[Model], tuple[Rule, ...]] = {}


rule_registry = _RuleRegistry()


def rules() -> Sequence[Rule]:
    """Return all declared rules, in the order of their declaration."""
    return tuple(rule_registry.rules)


def mistakes() -> list[str]:
    """Return the reasons why events are switched off, one sentence for each mistake."""
    return [f"the model event {rule.name} is switched off: {problem}" for rule in rules() for problem in rule.problems]


def of_model(model: type[Model]) -> tuple[Rule, ...]:
    """Return the active rules for objects of this class. For a migration's version of a class, return the rules of the
    model.
    """
    found = rule_registry.of_class.get(model)
    if found is None:
        is_old = is_historical(model)
        found = tuple(
            rule
            for rule in rule_registry.rules
            if rule.is_on
            and rule.model is not None
            and (issubclass(model, rule.model) or (is_old and model._meta.label == rule.model._meta.label))
        )
        if not is_old:  # not cached, because migrations make hundreds of such classes
            rule_registry.of_class[model] = found
    return found


def fire(model: type[Model], event: Event) -> None:
    for rule in of_model(model):
        if event.kind in rule.kinds:
            rule.fire(event)
