"""Functions that describe errors and write log lines without raising, whatever the methods of the project's objects do.

Any special method of a project's exception may raise an exception, even `SystemExit`. So may the handlers, filters and
formatters of the project's logging. Therefore these functions read attributes directly through `BaseException` and
`type`, and catch all exceptions of other code.
"""

from __future__ import annotations

import logging
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import TypeIs

T = TypeVar("T")

MAX_CHAIN_ERRORS = 20
"""Maximum number of errors in a chain of causes that a plain traceback contains."""
MAX_PLAIN_FRAMES = 50
"""Maximum number of stack frames of one error in a plain traceback. The last frames are kept."""
LOST_LINE_SECONDS = 1.0
"""Minimum seconds between two lines on standard error about log lines that could not be written."""


class Interruption:
    """The base class of the exceptions with which a worker interrupts a running task. Guarded log calls do not catch
    these exceptions.
    """

    __slots__ = ()


# --- describing errors ---

_qualname_of: Any = type.__dict__["__qualname__"].__get__
_module_of: Any = type.__dict__["__module__"].__get__
_traceback_of: Any = BaseException.__dict__["__traceback__"].__get__
_cause_of: Any = BaseException.__dict__["__cause__"].__get__
_context_of: Any = BaseException.__dict__["__context__"].__get__
_suppresses_context: Any = BaseException.__dict__["__suppress_context__"].__get__


def is_a(value: object, kinds: type[T] | tuple[type[T], ...]) -> TypeIs[T]:
    """Return whether the type of ``value`` is one of ``kinds`` or derives from one. `isinstance` is not used, because
    it may call code of the value's class.
    """
    try:
        return issubclass(type(value), kinds)
    except BaseException:  # noqa: BLE001 - the metaclass of a kind may raise
        return False


def type_name(error: object) -> str:
    """Return the dotted path of an object's class. The module is left out if it is ``builtins``."""
    kind = type(error)
    try:
        name = str.__str__(_qualname_of(kind))
        module = _module_of(kind)
        return f"{str.__str__(module)}.{name}" if is_a(module, str) and module != "builtins" else name
    except BaseException:  # noqa: BLE001 - a class may keep anything as its __module__
        return "an exception"


def get_message(error: BaseException) -> str:
    """Return ``str(error)``. If that raises an exception, return a note with the type of the exception."""
    try:
        return str.__str__(str(error))
    except BaseException as broken:  # noqa: BLE001 - an exception whose own __str__ raises must still be reported
        return f"<its message can't be shown: its class raised {type_name(broken)}>"


def get_traceback(error: BaseException) -> TracebackType | None:
    """Return the traceback of an error."""
    trace: TracebackType | None = _traceback_of(error)
    return trace


def traceback_text(error: BaseException) -> str:
    """Return the traceback of an error and of its causes in the form in which Python prints it; empty if the error was
    never raised.
    """
    trace = get_traceback(error)
    if trace is None:
        return ""
    try:
        return "".join(traceback.format_exception(type(error), error, trace))
    except BaseException:  # noqa: BLE001 - attributes of the error, or of one of its causes, may raise
        return _plain_traceback(error)


def _plain_traceback(error: BaseException) -> str:
    """Return a traceback without source lines. Except for `str`, no code of the project is called."""
    parts = []
    for cause in reversed(list(_chain(error))):
        frames = [f"  File {name!r}, line {line}, in {function}\n" for name, line, function in _frames(cause)]
        parts.append(
            "".join(["Traceback (most recent call last):\n", *frames, f"{type_name(cause)}: {get_message(cause)}\n"])
        )
    return "\nThe error above led to this one:\n\n".join(parts)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error, its cause, the cause of the cause, and so on."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen and len(seen) < MAX_CHAIN_ERRORS:
        seen.add(id(error))
        yield error
        cause = _cause_of(error)
        error = cause if cause is not None or _suppresses_context(error) else _context_of(error)


def _frames(error: BaseException) -> list[tuple[str, int, str]]:
    found = []
    trace = get_traceback(error)
    while trace is not None:
        code = trace.tb_frame.f_code
        found.append((code.co_filename, trace.tb_lineno, code.co_name))
        trace = trace.tb_next
    return found[-MAX_PLAIN_FRAMES:]


# --- writing log lines ---

if TYPE_CHECKING:
    _Adapter = logging.LoggerAdapter[logging.Logger]
else:
    _Adapter = logging.LoggerAdapter


class GuardedLogger(_Adapter):
    """A logger whose methods never raise, except if a worker interrupts the task that is logging."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Write a log line like `logging.Logger.log`. If that raises an exception, the line is written to standard
        error, at most once a second.
        """
        try:
            if not self.logger.isEnabledFor(level):
                return
            msg, args = _formattable(msg, args)
            if not any(kwargs.get("exc_info") is nothing for nothing in (None, False)):
                msg, args = _with_error(msg, args, kwargs)
            kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1
            self.logger.log(level, msg, *args, **kwargs)
        except BaseException as error:
            if is_a(error, Interruption):
                raise
            report_lost_line(self.logger.name, msg, args, error)


def get_logger(name: str) -> GuardedLogger:
    """Return a guarded logger with this name. The package writes all its log lines with such loggers."""
    return GuardedLogger(logging.getLogger(name), {})


def _formattable(msg: object, args: tuple[object, ...]) -> tuple[object, tuple[object, ...]]:
    """Return a message and arguments that can be formatted, because handlers drop a line that can't be formatted."""
    try:
        str(msg) % args if args else str(msg)
    except BaseException as error:
        if is_a(error, Interruption):
            raise
        return f"{type_name(error)} was raised while this line was formatted: {_text(msg)}", ()
    return msg, args


def _with_error(msg: object, args: tuple[object, ...], kwargs: dict[str, Any]) -> tuple[object, tuple[object, ...]]:
    """Return arguments for a log call in which an error whose traceback can't be formatted is a part of the message."""
    given = kwargs["exc_info"]
    error = given if is_a(given, BaseException) else given[1] if isinstance(given, tuple) else sys.exc_info()[1]
    if error is None:
        return msg, args
    kwargs["exc_info"] = (type(error), error, get_traceback(error))
    try:
        traceback.format_exception(*kwargs["exc_info"])
    except BaseException as broken:
        if is_a(broken, Interruption):
            raise
        kwargs["exc_info"] = None
        return "%s\n%s", (_text(str(msg) % args if args else msg), _plain_traceback(error))
    return msg, args


def _text(value: object) -> str:
    try:
        return str.__str__(str(value))
    except BaseException as broken:  # noqa: BLE001 - this is for a line that could not be formatted
        return f"<{type_name(value)}: {type_name(broken)} was raised>"


_reported_at = -LOST_LINE_SECONDS


def report_lost_line(name: str, msg: object, args: tuple[object, ...], error: BaseException) -> None:
    """Write a log line to standard error, because it could not be logged. ``error`` is the exception that logging has
    raised.
    """
    global _reported_at  # noqa: PLW0603 - one limit for the process
    now = time.monotonic()
    if now - _reported_at < LOST_LINE_SECONDS:
        return
    _reported_at = now
    with suppress(BaseException):  # the process may have no standard error
        msg, args = _formattable(msg, args)
        line = str(msg) % args if args else str(msg)
        sys.stderr.write(
            f"{name}: the project's logging raised {type_name(error)}: {get_message(error)}. Check the handlers, filters and "
            f"formatters of LOGGING. The line was: {line}\n"
        )
