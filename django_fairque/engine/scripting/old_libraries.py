"""Deleting libraries of functions of other versions, if nobody has called them for a day.

Each library counts the calls of its functions, and answers how long it has seen no new ones (`library.IDLE`), from one such
question to the next. A process that loads a new version asks the other libraries, and deletes those without a call since an
earlier question at least a day ago. A version that is still in use, as in a rolling deployment, is called in between. If a
process needs a deleted one after all, its next call loads it again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from django_fairque.engine.scripting.library import IDLE
from django_fairque.engine.scripting.scripts import library_name

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

UNUSED_SECONDS = 86_400
"""Seconds without a call after which a library is deleted."""


def delete_unused(execute: Callable[..., Any]) -> None:
    """Ask one server with ``execute``. A user who may not do this does nothing."""
    steps = _steps()
    command = next(steps)
    while command:
        try:
            reply = execute(*command)
        except ResponseError:
            reply = None
        command = steps.send(reply)


async def adelete_unused(execute: Callable[..., Awaitable[Any]]) -> None:
    """As `delete_unused`."""
    steps = _steps()
    command = next(steps)
    while command:
        try:
            reply = await execute(*command)
        except ResponseError:
            reply = None
        command = steps.send(reply)


def _steps() -> Generator[tuple[Any, ...], Any, None]:
    """Commands; each reply is sent, None for an error. The last command is empty."""
    for name in _names((yield ("FUNCTION LIST", "LIBRARYNAME", "fairque_*"))):
        if name == library_name():
            continue
        idle = yield ("FCALL", IDLE.format(name=name), 0)
        if isinstance(idle, int) and idle >= UNUSED_SECONDS:
            yield ("FUNCTION DELETE", name)
    yield ()


def _names(reply: Any) -> list[str]:
    """The libraries in the reply to FUNCTION LIST, each a mapping or a flat list, as the protocol's version has it."""
    found = []
    for entry in reply or ():
        fields = entry if isinstance(entry, dict) else dict(zip(entry[::2], entry[1::2], strict=False))
        texts = {_text(key): value for key, value in fields.items()}
        found.append(_text(texts.get("library_name", b"")))
    return found


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
