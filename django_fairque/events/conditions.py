"""Conditions for events: `changed`, `field_is`, callables, and their combinations with `&`, `|` and `~`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Union

from django.core.exceptions import ValidationError
from django.db.models import Field, FileField, Model
from django.db.models.fields.files import FieldFile

from django_fairque.engine.model.errors import short

from .event import CREATE, Event, check_path, find_column, get_field, get_key_value

ANY: Any = type("Any", (), {"__repr__": lambda _: "ANY"})()
"""A value that means any value."""


class Condition:
    """A condition for an event. Combine conditions with ``&``, ``|`` and ``~``; a callable of the event may be an operand."""

    def __call__(self, event: Event) -> bool:
        raise NotImplementedError

    def __and__(self, other: AnyCondition) -> Condition:
        return _Combined("&", all, self, condition(other))

    def __rand__(self, other: AnyCondition) -> Condition:
        return _Combined("&", all, condition(other), self)

    def __or__(self, other: AnyCondition) -> Condition:
        return _Combined("|", any, self, condition(other))

    def __ror__(self, other: AnyCondition) -> Condition:
        return _Combined("|", any, condition(other), self)

    def __invert__(self) -> Condition:
        return _Combined("~", lambda values: not any(values), self)

    def list_tracked_fields(self) -> Iterator[str]:
        """Yield the fields whose earlier values the condition needs."""
        return iter(())

    def problems(self, model: type[Model]) -> Iterator[str]:  # noqa: ARG002 - for those that know fields
        """Yield the mistakes of this condition if it is used for ``model``."""
        return iter(())


AnyCondition = Union[Condition, Callable[["Event"], object]]  # noqa: UP007 - evaluated on 3.10 too


class _Combined(Condition):
    """A combination of conditions, or the negation of one condition. ``counts`` gets an iterator that evaluates the
    conditions one by one, and returns whether the combination is true.
    """

    def __init__(self, sign: str, counts: Callable[[Iterable[bool]], bool], *parts: Condition) -> None:
        self.sign, self.counts, self.parts = sign, counts, parts

    def __call__(self, event: Event) -> bool:
        return self.counts(part(event) for part in self.parts)

    def __repr__(self) -> str:
        return f"~{self.parts[0]!r}" if self.sign == "~" else f"({f' {self.sign} '.join(map(repr, self.parts))})"

    def list_tracked_fields(self) -> Iterator[str]:
        for part in self.parts:
            yield from part.list_tracked_fields()

    def problems(self, model: type[Model]) -> Iterator[str]:
        for part in self.parts:
            yield from part.problems(model)


class _Function(Condition):
    def __init__(self, function: Callable[[Event], object]) -> None:
        self.function = function

    def __call__(self, event: Event) -> bool:
        return bool(self.function(event))

    def __repr__(self) -> str:
        return str(getattr(self.function, "__qualname__", repr(self.function)))


class changed(Condition):  # noqa: N801 - reads as a separate word
    """A condition: a field was saved with another value than before.

    ``field`` is the name of the field. ``was`` is the value that the field had before, ``to`` is the value that it has
    now; any value by default.

    When an object is created, its fields count as changed, and no ``was`` matches. If a deferred field was assigned
    without being loaded, its earlier value is unknown: the field counts as changed, and no ``was`` matches.
    """

    def __init__(self, field: str, *, was: Any = ANY, to: Any = ANY) -> None:
        self.field, self.was, self.to = field, was, to

    def __repr__(self) -> str:
        given = "".join(
            f", {name}={value!r}" for name, value in (("was", self.was), ("to", self.to)) if value is not ANY
        )
        return f"changed({self.field!r}{given})"

    def __call__(self, event: Event) -> bool:
        if not event.is_saved(self.field):
            return False
        column = event.column(self.field)
        now = event.instance.__dict__.get(column.attname, ANY)
        if self.to is not ANY and not is_same(column, now, self.to):
            return False
        if event.kind == CREATE or column.attname not in event.before:
            return self.was is ANY
        before = event.before[column.attname]
        if self.was is not ANY and not is_same(column, before, self.was):
            return False
        return not is_same(column, before, now)

    def list_tracked_fields(self) -> Iterator[str]:
        """Yield the name of the field."""
        yield self.field

    def problems(self, model: type[Model]) -> Iterator[str]:
        """Yield the mistakes of this condition if it is used for ``model``."""
        try:
            get_field(model, self.field)
        except LookupError as error:
            yield f"changed({self.field!r}): {error}"


class field_is(Condition):  # noqa: N801
    """A condition: a ``field``, or the field at the end of a path, now has this ``value``."""

    def __init__(self, field: str, value: Any) -> None:
        self.field, self.value = field, value

    def __repr__(self) -> str:
        return f"field_is({self.field!r}, {self.value!r})"

    def __call__(self, event: Event) -> bool:
        value = event.value(self.field)
        expected = self.value
        if isinstance(expected, Model) and not isinstance(value, Model):
            expected = get_key_value(expected, find_column(event.instance, self.field))
        return bool(value == expected)

    def problems(self, model: type[Model]) -> Iterator[str]:
        """Yield the mistakes of this condition if it is used for ``model``."""
        if problem := check_path(model, self.field):
            yield f"{self!r}: {problem}"


def condition(given: AnyCondition) -> Condition:
    """Return the condition, or make a condition from a callable."""
    if isinstance(given, Condition):
        return given
    if callable(given):
        return _Function(given)
    raise TypeError(f"a condition is changed(…), field_is(…) or a callable of the event, got {short(given)}")


def is_same(field: Field[Any, Any], left: Any, right: Any) -> bool:
    """Return whether two values are equal for a field. For an integer field, ``"3"`` and ``3`` are equal."""
    left, right = _plain(field, left), _plain(field, right)
    if left is right or bool(left == right):
        return True
    if left is None or right is None or left is ANY or right is ANY or hasattr(left, "resolve_expression"):
        return False
    try:
        return bool(field.to_python(left) == field.to_python(right))
    except (ValidationError, TypeError, ValueError):
        return False


def _plain(field: Field[Any, Any], value: Any) -> Any:
    if isinstance(value, Model):
        return get_key_value(value, field)
    if isinstance(value, FieldFile) or (value is None and isinstance(field, FileField)):
        return str(value or "")  # Django stores a file field without a file as an empty name
    return value
