"""`suppress_events`: no model events within a block, of the thread or coroutine that opened it."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.db.models import Model

_everything = object()
_suppressed: ContextVar[tuple[object, ...]] = ContextVar("fairque_suppressed_events", default=())


@contextmanager
def suppress_events(*models: type[Model]) -> Iterator[None]:
    """Within the block nothing that happens to objects of these models (of any, if none is named) enqueues a task."""
    token = _suppressed.set((*_suppressed.get(), *(models or (_everything,))))
    try:
        yield
    finally:
        _suppressed.reset(token)


def is_suppressed(model: type[Model]) -> bool:
    return any(
        each is _everything or (isinstance(each, type) and issubclass(model, each)) for each in _suppressed.get()
    )
