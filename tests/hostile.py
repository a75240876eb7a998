"""Classes of which a special method raises, and parts of `logging` that raise."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

METHODS = (
    *(
        "__getattr__",
        "__getattribute__",
        "__setattr__",
        "__str__",
        "__repr__",
        "__format__",
        "__bool__",
        "__eq__",
        "__hash__",
    ),
    *("__len__", "__iter__", "__contains__", "__reduce_ex__", "__dir__", "with_traceback", "add_note"),
)
ATTRIBUTES = (
    *("__cause__", "__context__", "__suppress_context__", "__class__", "__traceback__", "__notes__", "__dict__"),
    *("args", "name", "delay", "reason"),
)
RAISED: tuple[type[BaseException], ...] = (KeyError, SystemExit, KeyboardInterrupt, GeneratorExit, BaseException)
EVERYTHING = "everything"


def hostile_class(method: str, raised: type[BaseException], base: type = Exception) -> type[Any]:
    """Return a subclass of ``base`` whose ``method`` (or every one of them) raises ``raised``."""

    def fail(*_: object, **__: object) -> Any:
        raise raised("a special method raised this")

    methods, attributes = (METHODS, ATTRIBUTES) if method == EVERYTHING else ((method,), ())
    body = {name: property(fail) if name in (*attributes, *ATTRIBUTES) else fail for name in (*methods, *attributes)}
    return type(f"Hostile_{method.strip('_')}_{raised.__name__}", (base,), body)


def hostile_classes(base: type = Exception) -> Iterator[type[Any]]:
    """Yield such a class for each special method and for all of them, each with another error that it raises."""
    for index, method in enumerate((*METHODS, *ATTRIBUTES)):
        yield hostile_class(method, RAISED[index % len(RAISED)], base)
    for raised in RAISED:
        yield hostile_class(EVERYTHING, raised, base)


class RaisingHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            raise ConnectionError("the chat does not answer")


class RaisingFilter(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        raise SystemExit("a filter raised this")


class RaisingFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        raise KeyboardInterrupt("a formatter raised this")


LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "filters": {"raises": {"()": "tests.hostile.RaisingFilter"}},
    "formatters": {"raises": {"()": "tests.hostile.RaisingFormatter"}},
    "handlers": {
        "chat": {"class": "tests.hostile.RaisingHandler"},
        "odd": {"class": "logging.StreamHandler", "formatter": "raises"},
    },
    "loggers": {
        "django_fairque.worker.tasks": {"handlers": ["chat"], "propagate": False},
        "django_fairque.worker": {"handlers": ["odd"], "filters": ["raises"], "level": "INFO"},
        "django_fairque.tasks": {"handlers": ["odd"]},
        "asyncio": {"handlers": ["chat"]},
    },
    "root": {"handlers": ["chat"], "level": "INFO"},
}
