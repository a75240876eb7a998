"""Converts arguments and results whose types JSON lacks, according to a function's annotations.

Values of a parameter with a JSON type are not checked, which costs no time. Every other annotation that pydantic can
read gets one `TypeAdapter`, made when the task is declared. `dump` converts a value to plain JSON when the task is
sent, and `load` converts the JSON back before the function is called. The queue, the admin and workers of other
versions handle only JSON.
"""

from __future__ import annotations

import collections.abc
import inspect
import json
import re
import sys
import types
import typing
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from django_fairque.engine.model.errors import TaskSerializationError, short, short_text
from django_fairque.safely import Interruption, get_message, is_a

from .errors import TaskUsageError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

JSON_CLASSES = (str, int, float, bool, list, dict, type(None), object)
SEQUENCES = (list, Sequence, collections.abc.MutableSequence, collections.abc.Collection, collections.abc.Iterable)
MAPPINGS = (dict, Mapping, collections.abc.MutableMapping)


STANDARD_CLASSES = (*JSON_CLASSES, bytes, uuid.UUID, Decimal, datetime, date, time, timedelta)
COLLECTIONS = (*SEQUENCES, *MAPPINGS, tuple, set, frozenset)


class ValueType:
    """An annotation whose values JSON lacks, with the conversion of such values."""

    def __init__(self, hint: Any) -> None:
        from pydantic import TypeAdapter

        if get_origin(hint) is collections.abc.Iterable:  # pydantic would turn this value into a generator
            hint = types.GenericAlias(collections.abc.Sequence, get_args(hint))
        self._adapter: TypeAdapter[Any] = TypeAdapter(hint)
        self.text = describe(hint)

    def dump(self, value: Any) -> Any:
        """Return the value as JSON. Raises `TaskUsageError` if the value has another type, or if loading the JSON would
        result in a different value.
        """
        try:
            self._adapter.validate_python(value, strict=True)
        except Exception as error:  # noqa: BLE001 - a validator of the project may raise anything
            raise TaskUsageError(f"expected {self.text}, got {_of_type(value)}: {_reason(error)}") from None
        try:
            stored = self._adapter.dump_python(value, mode="json", by_alias=True, round_trip=True, warnings="error")
            again = self.load(stored)
        except Exception as error:  # noqa: BLE001 - a serializer may raise anything, too
            raise TaskUsageError(f"{_of_type(value)} can't be sent as {self.text}: {_reason(error)}") from None
        if not _is_same(value, again):
            raise TaskUsageError(
                f"{_of_type(value)} can't be sent as {self.text}: it would arrive as {_of_type(again)}"
            )
        kept = _in_one_form(value, stored)
        return kept if kept == stored or _is_same(value, self.load(kept)) else stored

    def load(self, stored: Any) -> Any:
        """Return the value that belongs to a JSON value. Raises `TaskSerializationError` if the JSON does not fit the
        type; the error does not contain the value.
        """
        try:
            text = json.dumps(stored)
            value = self._adapter.validate_json(text, strict=True)
            return _with_folds(value, stored) if _IN_JSON_FOLDED.search(text) else value
        except Exception as error:  # noqa: BLE001 - a validator of the project may raise anything
            raise TaskSerializationError(
                f"expected {self.text} as JSON, got {type(stored).__name__}: {_reason(error)}"
            ) from None

    def coerce(self, value: Any) -> Any:
        """Return a value of this type for its JSON, for example the enum member for the text in a model's field. Return
        any other value unchanged.
        """
        try:
            return self._adapter.validate_python(value, strict=True)
        except Exception:  # noqa: BLE001 - see above
            try:
                return self.load(value)
            except TaskSerializationError:
                return value


def _is_same(value: Any, again: Any) -> bool:
    if getattr(type(value), "__eq__", None) is object.__eq__:
        return type(value) is type(again)  # two objects without __eq__ are never equal
    if isinstance(value, tuple) and isinstance(again, list):  # a tuple becomes a list if the annotation is Sequence
        value = list(value)
    try:
        return bool(value == again) or bool(_in_utc(value) == _in_utc(again))
    except Exception:  # noqa: BLE001 - for example comparing an aware and a naive time
        return False


def _in_utc(value: Any) -> Any:
    """Convert the moments in a value to UTC, to compare the value. Python never considers a time in a repeated or
    skipped hour equal to a time of another zone (PEP 495).
    """
    if isinstance(value, datetime):
        return value if value.tzinfo is None else value.astimezone(timezone.utc)
    if isinstance(value, dict):
        return {_in_utc(key): _in_utc(nested) for key, nested in value.items()}
    if isinstance(value, (set, frozenset)):
        return frozenset(map(_in_utc, value))
    if isinstance(value, (list, tuple)):
        return [_in_utc(nested) for nested in value] if isinstance(value, list) else tuple(map(_in_utc, value))
    fields = _fields(value)
    return value if fields is None else (type(value), tuple((name, _in_utc(nested)) for name, nested in fields.items()))


_FOLDED = re.compile(r"^\d{4}-\d\d-\d\dt")
_IN_JSON_FOLDED = re.compile(r'"\d{4}-\d\d-\d\dt')


def _with_folds(value: Any, stored: Any) -> Any:
    """Set ``fold=1`` in each `datetime` without a time zone whose JSON in ``stored`` contains a lowercase t. Values in
    sets are left out.
    """
    if isinstance(stored, str):
        is_folded = isinstance(value, datetime) and value.tzinfo is None and _FOLDED.match(stored)
        return value.replace(fold=1) if is_folded else value
    if isinstance(stored, list) and type(value) in (list, tuple) and len(value) == len(stored):
        return type(value)(map(_with_folds, value, stored))
    if not isinstance(stored, dict):
        return value
    if isinstance(value, dict):
        return dict(zip(value, map(_with_folds, value.values(), stored.values()), strict=True))
    fields = _fields(value) or {}
    if len(fields) == len(stored):  # same number means same order; the names may be aliases
        for (name, held), part in zip(fields.items(), stored.values(), strict=True):
            if (kept := _with_folds(held, part)) is not held:
                object.__setattr__(value, name, kept)
    return value


def _in_one_form(value: Any, stored: Any) -> Any:
    """Sort the sets in ``stored``, the JSON of a value. The order of a set differs between processes, but the same call
    must always have the same key for `unique_for`.

    A `datetime` without a time zone is written with a lowercase t if its ``fold`` is 1, because JSON has no form for
    ``fold`` and every release of this package can read the lowercase t.
    """
    if isinstance(value, datetime) and value.tzinfo is None and value.fold and stored == value.isoformat():
        return stored.replace("T", "t")
    if getattr(type(value), "__pydantic_root_model__", False):
        value = value.root
    if isinstance(stored, list):
        if not isinstance(value, (set, frozenset, list, tuple)) or len(value) != len(stored):
            return stored
        found = [_in_one_form(*pair) for pair in zip(value, stored, strict=True)]
        return sorted(found, key=_encode) if isinstance(value, (set, frozenset)) else found
    if not isinstance(stored, dict):
        return stored
    held = value if isinstance(value, dict) else _fields(value)
    if held is None:
        return stored
    if len(held) == len(stored):  # same number means same order; the names may be aliases
        held = dict(zip(stored, held.values(), strict=True))
    return {name: _in_one_form(held[name], nested) if name in held else nested for name, nested in stored.items()}


def _encode(stored: Any) -> str:
    return json.dumps(stored, sort_keys=True)


def _fields(value: Any) -> dict[str, Any] | None:
    """Return the fields of a dataclass or a pydantic model by name; None for any other value."""
    kind = type(value)
    if hasattr(kind, "__dataclass_fields__"):
        return {name: getattr(value, name) for name in kind.__dataclass_fields__ if hasattr(value, name)}
    if hasattr(kind, "__pydantic_root_model__"):  # models of all supported pydantic versions have this attribute
        return {**vars(value), **(value.__pydantic_extra__ or {})}
    return None


def _of_type(value: Any) -> str:
    return f"{type(value).__name__} {short(value)}"


def _reason(error: Exception) -> str:
    """Return the reason of a validation error in one line and without the value, because pydantic's own text has
    several lines.
    """
    from pydantic import ValidationError

    if isinstance(error, TaskSerializationError):
        return str(error)
    if not isinstance(error, ValidationError):
        return short_text(f"{type(error).__name__}: {' '.join(get_message(error).split())}")
    found = error.errors(include_url=False, include_context=False, include_input=False)
    place = ".".join(map(str, found[0]["loc"]))
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return short_text((f"at {place}: " if place else "") + found[0]["msg"]) + more


def describe(hint: Any) -> str:
    """Return an annotation in the form in which it is written in code: ``UUID``, ``list[Decimal]``."""
    if hint is type(None):
        return "None"
    if isinstance(hint, type) and not get_args(hint):
        return hint.__qualname__.replace("<locals>.", "")
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return describe(parts[0])
    if _is_union(origin):
        return " | ".join(map(describe, parts))
    if origin is not None and origin is not Literal and all(not isinstance(part, list) for part in parts):
        named = ", ".join("..." if part is ... else describe(part) for part in parts)
        return f"{getattr(origin, '__name__', origin)}[{named}]"
    return str(hint).replace("typing.", "")


def _is_union(origin: Any) -> bool:
    return origin is Union or origin is types.UnionType


def is_json(hint: Any) -> bool:
    """Return whether JSON has this type, so that its values need no conversion."""
    if hint in JSON_CLASSES or hint in SEQUENCES or hint in MAPPINGS or hint is Any or isinstance(hint, typing.TypeVar):
        return True
    if hint in (typing.NoReturn, inspect.Parameter.empty, None):
        return True
    # A NewType has `__supertype__`, and a `type` statement makes an object with `__value__`.
    alias = getattr(hint, "__supertype__", None) or getattr(hint, "__value__", None)
    if alias is not None and not isinstance(hint, type):
        return is_json(alias)
    if dict in getattr(hint, "__mro__", ()) and hasattr(hint, "__total__"):
        return True  # true for a TypedDict: before Python 3.12, pydantic refuses those of the module `typing`
    return _is_json_generic(get_origin(hint), get_args(hint))


def _is_json_generic(origin: Any, parts: Sequence[Any]) -> bool:
    if origin is Annotated:
        return is_json(parts[0])
    if origin is Literal:
        return all(isinstance(part, (str, int, type(None))) and type(part) in JSON_CLASSES for part in parts)
    if _is_union(origin) or origin in SEQUENCES:
        return all(map(is_json, parts))
    if origin in MAPPINGS:
        return not parts or (parts[0] in (str, Any) and is_json(parts[1]))
    return False


def is_standard(hint: Any) -> bool:
    """Return whether converting a value of this type runs no code of the project. This is true for types of JSON or of
    the standard library, and for collections of such types.
    """
    origin = get_origin(hint)
    if _is_union(origin) or origin in COLLECTIONS:
        return all(argument is ... or is_standard(argument) for argument in get_args(hint))
    return hint in STANDARD_CLASSES or hint is Any or origin is Literal


class CallTypes:
    """The types of a function's parameters and result that JSON lacks.

    An annotation that can't be evaluated when the task is declared, because it names a later definition, is read when
    the task is first used. If it still can't be read, or pydantic does not know the type, its values must be JSON.

    ``function`` is the task's function, ``signature`` contains its parameters, and ``is_batch`` shows whether the
    function is called with a list of items. ``args`` and ``kwargs`` of the methods are the arguments of one call.
    """

    def __init__(self, function: Callable[..., Any], signature: inspect.Signature, *, is_batch: bool) -> None:
        self._namespace = getattr(inspect.unwrap(function), "__globals__", {})
        self._is_batch = is_batch
        self._annotations = _annotations(inspect.unwrap(function))
        kinds = {name: parameter.kind for name, parameter in signature.parameters.items()}
        self._order = [name for name, kind in kinds.items() if kind in _POSITIONAL]
        self._rest = next((name for name, kind in kinds.items() if kind is inspect.Parameter.VAR_POSITIONAL), "")
        self._named_rest = next((name for name, kind in kinds.items() if kind is inspect.Parameter.VAR_KEYWORD), "")
        self._by_name = {name for name, kind in kinds.items() if kind in _BY_NAME}
        self._own: list[str] = []
        """Names of parameters whose types are defined by the project."""
        self._pending = [name for name in (*kinds, RETURN) if name in self._annotations]
        self._found: dict[str, ValueType] = {}
        self.loads_by_project = True
        """Whether `load` may run code of the project, such as the validators of a model."""
        self.problems: dict[str, str] = {}
        """The reason why a parameter's annotation is not used, by parameter."""
        self._read_pending()

    @property
    def is_needed(self) -> bool:
        """Whether values may need conversion now, or after the pending annotations are read."""
        return bool(self._found or self._pending)

    def dump(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return ``args`` and ``kwargs`` as JSON. Raises `TaskUsageError`, which names the argument."""
        return self._convert_arguments(args, kwargs, ValueType.dump)

    def dump_known(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return ``args`` and ``kwargs`` as JSON. Values that don't fit their annotation (defaults, for example) stay
        unchanged.
        """

        def dump(found: ValueType, value: Any) -> Any:
            try:
                return found.dump(value)
            except TaskUsageError:
                return value

        return self._convert_arguments(args, kwargs, dump)

    def load(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return the values that the function receives for the JSON ``args`` and ``kwargs``. Raises
        `TaskSerializationError`, which names the argument, if one does not fit its annotation.
        """
        return self._convert_arguments(args, kwargs, ValueType.load)

    def coerce(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return ``args`` and ``kwargs``. JSON values of converted parameters are replaced by values of their types
        (see `ValueType.coerce`).
        """
        return self._convert_arguments(args, kwargs, ValueType.coerce)

    def dump_result(self, value: Any) -> Any:
        """Return ``value``, the function's result, as JSON. Raises `TaskSerializationError` if it does not fit the
        annotation.
        """
        self._read_pending(is_last=True)
        found = self._found.get(RETURN)
        if found is None:
            return value
        try:
            return found.dump(value)
        except TaskUsageError as error:
            raise TaskSerializationError(f"the result does not fit the annotation of the function: {error}") from None

    def load_result(self, stored: Any) -> Any:
        """Return the function's result for its JSON ``stored``. Raises `TaskSerializationError` if the JSON does not
        fit the annotation.
        """
        self._read_pending(is_last=True)
        found = self._found.get(RETURN)
        return stored if found is None else found.load(stored)

    def converts(self, name: str | int) -> bool:
        """Return whether the argument with this ``name``, or at this position, is converted."""
        self._read_pending(is_last=True)
        return (
            self._get_positional_name(name) if isinstance(name, int) else self._get_keyword_name(name)
        ) in self._found

    def _convert_arguments(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], convert: Callable[[ValueType, Any], Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        self._read_pending(is_last=True)
        positional, named = list(args), dict(kwargs)
        if not self._found:
            return positional, named
        for index, value in enumerate(positional):
            positional[index] = self._convert(self._get_positional_name(index), value, convert)
        for name, value in named.items():
            named[name] = self._convert(self._get_keyword_name(name), value, convert, name)
        return positional, named

    def _get_positional_name(self, index: int) -> str:
        return self._order[index] if index < len(self._order) else self._rest

    def _get_keyword_name(self, name: str) -> str:
        return name if name in self._by_name else self._named_rest

    def _convert(self, parameter: str, value: Any, convert: Callable[[ValueType, Any], Any], name: str = "") -> Any:
        found = self._found.get(parameter)
        if found is None:
            return value
        try:
            return convert(found, value)
        except (TaskUsageError, TaskSerializationError) as error:
            raise type(error)(f"argument {name or parameter!r}: {error}") from None

    def _read_pending(self, *, is_last: bool = False) -> None:
        """Read the annotations that could not be read at the declaration. This is done at the first use, for the last
        time.
        """
        if not self._pending:
            return
        left = [name for name in self._pending if not self._read(name, is_last=is_last)]
        self.loads_by_project = bool(left or self._own)
        self._pending = left  # set last, because a thread that finds nothing pending must find all types

    def _read(self, name: str, *, is_last: bool) -> bool:
        """Read an annotation. Return False if it must be read again, because it may be defined later."""
        try:
            hint = self._hint(name)
            if not is_json(hint):
                self._found[name] = ValueType(hint)
                if name != RETURN and not is_standard(hint):
                    self._own.append(name)
        except Exception as error:  # noqa: BLE001 - an annotation may be anything
            self.problems[name] = short_text(f"{type(error).__name__}: {error}".partition("\n")[0])
            return is_last or not _may_be_defined_later(error)
        self.problems.pop(name, None)
        return True

    def _hint(self, name: str) -> Any:
        holder = type("Annotated", (), {"__annotations__": {name: self._annotations[name]}})
        hint = typing.get_type_hints(holder, self._namespace, self._namespace, include_extras=True)[name]
        if not self._is_batch:
            return hint
        return _of_items(hint, is_result=name == RETURN)


RETURN = "return"
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BY_NAME = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _annotations(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations without evaluating them, because names in them may not be defined yet."""
    if sys.version_info >= (3, 14):
        import annotationlib

        return annotationlib.get_annotations(function, format=annotationlib.Format.FORWARDREF)
    return inspect.get_annotations(function)


def _may_be_defined_later(error: Exception) -> bool:
    return isinstance(error, NameError) or getattr(error, "code", "") in (
        "undefined-annotation",
        "class-not-fully-defined",
    )


def _of_items(hint: Any, *, is_result: bool) -> Any:
    """Return the type of the items in a batch task's list, or the type of one item's result."""
    parts = get_args(hint)
    if get_origin(hint) not in SEQUENCES or len(parts) != 1:
        return Any
    if not (is_result and _is_union(get_origin(parts[0]))):
        return parts[0]
    kept = tuple(
        argument
        for argument in get_args(parts[0])
        if not (isinstance(argument, type) and issubclass(argument, BaseException))
    )
    return Union[kept] if kept else Any  # noqa: UP007 - a tuple can't be joined by operators


_types_by_name: dict[str, CallTypes] = {}
"""The value types of this process's registered tasks, by task name. Only tasks that use types that JSON lacks are
included."""


def register_types(name: str, found: CallTypes | None) -> None:
    """Record the value types of a task, so that a handle can convert its result; None removes them."""
    if found is None:
        _types_by_name.pop(name, None)
    else:
        _types_by_name[name] = found


def load_result(name: str, stored: Any) -> Any:
    """Return the result of a task in the form in which its function returned it. Return JSON if this process does not
    know the task.

    Raises `TaskSerializationError` if the result no longer fits the function's annotation.
    """
    found = _types_by_name.get(name)
    return stored if found is None else found.load_result(stored)


def is_convertible(value: Any) -> bool:
    """Return whether the value could be sent if the parameter were annotated with the value's type."""
    if type(value) in JSON_CLASSES:
        return False
    try:
        ValueType(type(value)).dump(value)
    except Exception:  # noqa: BLE001 - it can't be converted
        return False
    return True


def describe_problem(value: Any, name: str) -> str:
    """Return advice about a value that is not JSON; an empty text if there is no advice for this value."""
    try:
        return _advice(value, name)
    except Exception as error:
        if is_a(error, Interruption):
            raise
        return ""  # a method of a nested value has raised an error


def _advice(value: Any, name: str) -> str:
    from django.db.models import Model, QuerySet

    for nested in _iterate_values(value):
        if isinstance(nested, Model):
            return (
                f"{name} {'is' if nested is value else 'holds'} a model instance ({nested._meta.label}); pass its primary key "
                "(.pk) and load the object in the task"
            )
        if isinstance(nested, QuerySet):
            return f"{name} {'is' if nested is value else 'holds'} a QuerySet; pass a list of primary keys"
    return ""


MOST_VALUES = 1000
"""Maximum number of values in an argument that are searched for a model instance."""


def _iterate_values(value: Any, levels: int = 5) -> Iterator[Any]:
    yield value
    if levels and isinstance(value, (list, tuple, set, frozenset, dict)):
        for nested in list(value.values() if isinstance(value, dict) else value)[:MOST_VALUES]:
            yield from _iterate_values(nested, levels - 1)
