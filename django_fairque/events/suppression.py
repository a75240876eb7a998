"""`suppress_events`: no model events within a block, of the thread or coroutine that opened it."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from django_fairque.tasks.errors import TaskUsageError

from .classes import model_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.db.models import Model

_everything = object()
_suppressed: ContextVar[tuple[object, ...]] = ContextVar("fairque_suppressed_events", default=())


@contextmanager
def suppress_events(*models: type[Model] | str) -> Iterator[None]:
    """Within the block nothing that happens to objects of these models (of any, if none is named) enqueues a task.

    Args:
        models: classes or their labels (``"shop.Order"``); children and proxies count too.

    Raises:
        TaskUsageError: for what is no model.
    """
    found = tuple(map(_model, models)) or (_everything,)
    token = _suppressed.set((*_suppressed.get(), *found))
    try:
        yield
    finally:
        _suppressed.reset(token)


def _model(given: type[Model] | str) -> object:
    try:
        return model_of(given)
    except LookupError as error:
        raise TaskUsageError(f"suppress_events: {error}") from None


def is_suppressed(model: type[Model]) -> bool:
    return any(
        each is _everything or (isinstance(each, type) and issubclass(model, each)) for each in _suppressed.get()
    )
