"""`on_create` and similar functions, with which a project declares model events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from django.db.models import Value

from django_fairque.engine.model.errors import short
from django_fairque.tasks.definition import Sendable
from django_fairque.tasks.errors import TaskUsageError
from django_fairque.tasks.options import DECLARABLE, SENDABLE, SendOptions, TaskOptions, change_options, unknown_option

from . import activation
from .conditions import AnyCondition, condition
from .event import CREATE, DELETE, M2M, SAVE, SIGNAL, UPDATE, Event
from .rules import Argument, Rule

if TYPE_CHECKING:
    from django.db.models import Model
    from django.dispatch import Signal
    from typing_extensions import Unpack


ACTIONS = ("add", "remove", "clear")

Task = TypeVar("Task")
User = str | Value | Callable[[Event], Any] | None
"""The user of an event's task: a field path, a literal in `Value`, or a callable of the event. None leaves the user to
the task's own options."""
AllArguments = Value | Iterable[Any] | Callable[[Event], Any]
"""The arguments of an event's task. Each argument is a field path, a literal in `Value`, or a callable of the event; or
one callable returns all arguments. A single string is one field path."""


class EventOptions(SendOptions, total=False):
    """Options of every declaration, in addition to the options of `using`: ``delay``, ``debounce``, ``unique_for``, ``queue``, …

    ``when``: a condition: `changed`, `field_is`, a callable of the `Event`, or a combination with ``&``, ``|``, ``~``.
    ``user``: the task's user: a field path, ``Value("text")`` or a callable of the event; by default the task's own
        option.
    ``args``: the arguments for a decorated task, the primary key by default: field paths and ``Value``, or a callable
        that returns all arguments.
    ``name``: the name of the event, for ``fairque_events``; by default made from the model, the kind of event and the
        task.
    ``reentrant``: whether a task is enqueued again if the task itself causes the event; False by default.
    """

    when: AnyCondition | None
    user: User
    args: AllArguments
    name: str
    reentrant: bool


EVENT_OPTIONS = frozenset(EventOptions.__annotations__) - SENDABLE
FORBIDDEN_OPTIONS = frozenset({"user_id", "on_commit", "database", "task_id"})
"""Options of `using` that an event sets itself, so a declaration must not."""
ALLOWED_EVENT_OPTIONS = EVENT_OPTIONS | SENDABLE - FORBIDDEN_OPTIONS


class Declaration:
    """A declared event without its task, made by `on_create` and similar functions. Set the task with `enqueue`, or
    decorate the task with this object.
    """

    def __init__(
        self, word: str, kinds: set[str], model: type[Model] | str | None, given: Mapping[str, Any], **fields: Any
    ) -> None:
        label = model if isinstance(model, str) else model._meta.label if model is not None else ""
        what = f"{label}:{word}" if label else word
        user, args, when = given.get("user"), given.get("args", ("pk",)), given.get("when")
        options = {name: value for name, value in given.items() if name not in EVENT_OPTIONS}
        if not (user is None or callable(user) or isinstance(user, Value) or (isinstance(user, str) and user)):
            raise TaskUsageError(
                f"{what}: user must be a field path, Value(…) or a callable of the event, got {short(user)}"
            )
        _check(what, options)
        if not (callable(args) or isinstance(args, (Value, Iterable))):
            raise TaskUsageError(
                f"{what}: args must be a field path, Value(…), a list of these, or a callable of the event that gives all, "
                f"got {short(args)}"
            )
        self._what = what
        self._name = given.get("name", "")
        self._args: Iterable[Any] | Callable[[Event], Any] = (args,) if isinstance(args, (str, Value)) else args
        self._fields: dict[str, Any] = {
            "kinds": frozenset(kinds),
            "target": model,
            "when": None if when is None else condition(when),
            "user": user,
            "options": options,
            "reentrant": given.get("reentrant", False),
            **fields,
        }

    def enqueue(self, task: Task, /, *args: Argument, **kwargs: Argument) -> Task:
        """Enqueue a task each time the event happens.

        ``task`` is a task, or the name of a registered task. ``args`` and ``kwargs`` are the arguments of the task: a
        string is a field path, ``Value("text")`` (of ``django.db.models``) is that text, a callable is called with the
        `Event`, and any other value is passed unchanged.

        Returns the task. Raises `TaskUsageError` if ``task`` is neither a task nor a name. Fields that the model does
        not have are reported by ``manage.py check``.
        """
        return self._declare(task, args=args, kwargs=kwargs)

    def __call__(self, task: Task) -> Task:
        """Decorate a task. Its arguments are the arguments of the declaration, or the primary key by default."""
        if callable(self._args):
            return self._declare(task, bind=self._args)
        return self._declare(task, args=tuple(self._args))

    def _declare(self, task: Task, **arguments: Any) -> Task:
        if not (isinstance(task, Sendable) or (isinstance(task, str) and task)):
            raise TaskUsageError(
                f"{self._what} enqueues a task: expected one (put @task below the event), got {short(task)}"
            )
        rule = Rule(name="", task=task, **arguments, **self._fields)
        rule.name = self._name or f"{self._what}:{rule.task_name}"
        activation.add(rule)
        return task


def on_create(model: type[Model] | str, **options: Unpack[EventOptions]) -> Declaration:
    """Return the declaration of an event: an object was created.

    ``model`` is a class or ``"app.Model"``; its subclasses and proxies count too. The ``options`` are the options of
    `Sendable.using`, except ``user_id``, ``task_id``, ``on_commit`` and ``database``, and also:

    - ``when``: a condition: `changed`, `field_is`, a callable of the `Event`, or a combination with ``&``, ``|``,
      ``~``; always by default.
    - ``user``: the task's user: a field path, ``Value("text")`` or a callable of the event; by default the user of the
      task's declaration.
    - ``args``: the arguments for a decorated task: field paths and ``Value``, or a callable that returns all arguments;
      the primary key by default.
    - ``name``: the event's name, for ``fairque_events``; by default made from the model, the kind of event and the
      task.
    - ``reentrant``: whether a task is enqueued again if the task itself causes the event; False by default.

    Raises `TaskUsageError` if an option is unknown or wrong.
    """
    return Declaration("create", {CREATE}, model, options)


def on_update(model: type[Model] | str, **options: Unpack[EventOptions]) -> Declaration:
    """Return the declaration of an event: an object that existed before was saved.

    ``model``, ``options`` and the error are the same as for `on_create`.
    """
    return Declaration("update", {UPDATE}, model, options)


def on_save(model: type[Model] | str, **options: Unpack[EventOptions]) -> Declaration:
    """Return the declaration of an event: an object was created or updated.

    ``model``, ``options`` and the error are the same as for `on_create`.
    """
    return Declaration("save", {CREATE, UPDATE, SAVE}, model, options)


def on_delete(model: type[Model] | str, **options: Unpack[EventOptions]) -> Declaration:
    """Return the declaration of an event: an object is deleted. Its fields and related objects are read before the deletion.

    ``model``, ``options`` and the error are the same as for `on_create`.
    """
    return Declaration("delete", {DELETE}, model, options)


def on_m2m(
    model: type[Model] | str, field: str, *, actions: Iterable[str] = ACTIONS, **options: Unpack[EventOptions]
) -> Declaration:
    """Return the declaration of an event: a many-to-many relation of an object changed, from either side.

    ``field`` is the many-to-many field, on the model that declares it. ``actions`` are some of "add", "remove" and
    "clear"; all by default. With a ``through`` model, rows that are created and deleted directly also fire the event,
    and clearing the relation is a "remove" of each row. ``model`` and ``options`` are the same as for `on_create`.

    Raises `TaskUsageError` if an option or an action is unknown or wrong.
    """
    chosen = frozenset([actions] if isinstance(actions, str) else actions)
    if not chosen or not chosen <= set(ACTIONS):
        raise TaskUsageError(f"on_m2m: actions must be some of {', '.join(ACTIONS)}, got {short(actions)}")
    return Declaration(f"m2m.{field}", {M2M}, model, options, relation=field, actions=chosen)


def on_signal(signal: Signal, *, sender: Any = None, **options: Unpack[EventOptions]) -> Declaration:
    """Return the declaration of an event: a Django signal was sent.

    ``signal`` is the signal. ``sender`` limits it to one sender; any by default. Field paths start from the signal's
    argument ``instance``, if it has one; ``event.arguments`` contains all arguments. A decorated task gets no arguments
    by default. ``options`` are the same as for `on_create`.

    Raises `TaskUsageError` if ``signal`` is not a signal, or an option is unknown or wrong.
    """
    if not callable(getattr(signal, "connect", None)):
        raise TaskUsageError(f"on_signal: expected a django.dispatch.Signal, got {short(signal)}")
    return Declaration("signal", {SIGNAL}, None, {"args": (), **options}, signal=signal, sender=sender)


def _check(what: str, options: Mapping[str, Any]) -> None:
    """Raise `TaskUsageError` for options with which no task could be sent. The error names the allowed options."""
    for name in options:
        if name in FORBIDDEN_OPTIONS:
            hint = "user=…" if name == "user_id" else "nothing: the event decides that"
            raise TaskUsageError(f"{what}: {name} can't be given to an event; give {hint}")
        if name in DECLARABLE - SENDABLE:
            raise TaskUsageError(
                f"{what}: {name} is an option of a task and not of an event: expected one of "
                f"{', '.join(sorted(ALLOWED_EVENT_OPTIONS))}, got {name}={short(options[name])}; write @task({name}=…)"
            )
        if name not in ALLOWED_EVENT_OPTIONS:
            raise TaskUsageError(f"{what}: {unknown_option(name, ALLOWED_EVENT_OPTIONS)}")
    change_options(TaskOptions(), options, SENDABLE, what)
