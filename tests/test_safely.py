"""Describing errors and writing log lines, with objects and with parts of `logging` that raise."""

from __future__ import annotations

import io
import logging
from typing import TYPE_CHECKING, Any

import pytest

from django_fairque import safely
from django_fairque.engine.model.errors import short
from django_fairque.engine.model.outcome import describe
from django_fairque.tasks.errors import SoftTimeLimitExceeded, TaskRevoked

from . import hostile

if TYPE_CHECKING:
    from collections.abc import Iterator


def raised_with_a_cause(kind: type[Any]) -> BaseException:
    """Raise an error of this class while another is handled, and return it."""
    try:
        try:
            raise ValueError("the first error")  # noqa: TRY301
        except ValueError:
            raise kind("refused")  # noqa: B904 - its context is wanted
    except BaseException as error:  # noqa: BLE001 - it may have any base
        return error


@pytest.mark.parametrize("base", [Exception, BaseException, SystemExit])
def test_every_error_has_a_name_and_a_traceback(base: type[BaseException]) -> None:
    for kind in hostile.hostile_classes(base):
        text, trace = (part.decode() for part in describe(raised_with_a_cause(kind)))
        assert text.startswith(f"tests.hostile.{kind.__name__}: "), kind
        assert text.endswith("refused") or "its message can't be shown" in text, kind
        assert "in raised_with_a_cause" in trace, kind
        assert "ValueError: the first error" in trace, kind


def test_a_value_is_named_even_if_its_methods_raise() -> None:
    for kind in hostile.hostile_classes(object):
        if kind.__name__.endswith("KeyError"):
            assert 0 < len(short(kind())) <= 80


def test_the_message_may_be_text_of_a_class_that_raises() -> None:
    class Text(str):
        __slots__ = ()

        def __getitem__(self, _: object) -> str:
            raise RuntimeError

        __format__ = encode = __add__ = __getitem__  # type: ignore[assignment]

    class OddError(Exception):
        def __str__(self) -> str:
            return Text("odd")

    OddError.__module__, OddError.__qualname__ = Text("somewhere"), Text("OddError")
    assert describe(OddError())[0] == b"somewhere.OddError: odd"


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """The output of a handler of the logger ``guarded``."""
    logger, stream = logging.getLogger("guarded"), io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(levelname)s %(funcName)s %(message)s"))
    logger.addHandler(handler)
    yield stream
    logger.handlers.clear()
    logger.filters.clear()


def test_a_log_line_about_a_hostile_error_is_written(stream: io.StringIO) -> None:
    logger = safely.get_logger("guarded")
    for kind in hostile.hostile_classes():
        error = raised_with_a_cause(kind)
        logger.error("it failed: %s", error, exc_info=error)
        try:
            raise error
        except kind:
            logger.exception("it failed again")
        written = stream.getvalue()
        assert written.count(f"{kind.__name__}: ") >= 2, kind
        assert "it failed again" in written
        stream.truncate(stream.seek(0))


def test_a_log_line_names_its_caller(stream: io.StringIO) -> None:
    logger = safely.get_logger("guarded")
    logger.warning("here")
    logger.log(logging.ERROR, "and here")
    try:
        raise ValueError  # noqa: TRY301
    except ValueError:
        logger.exception("and there")
    lines = [line for line in stream.getvalue().splitlines() if line.startswith(("WARNING", "ERROR"))]
    assert lines == [
        f"{level} test_a_log_line_names_its_caller {text}"
        for level, text in (("WARNING", "here"), ("ERROR", "and here"), ("ERROR", "and there"))
    ]


@pytest.mark.parametrize("part", ["handler", "filter", "formatter", "factory"])
def test_logging_that_raises_does_not_end_the_caller(
    part: str, stream: io.StringIO, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safely, "_reported_at", float("-inf"))
    logger = logging.getLogger("guarded")
    match part:
        case "handler":
            logger.handlers.insert(0, hostile.RaisingHandler())
        case "filter":
            logger.addFilter(hostile.RaisingFilter())
        case "formatter":
            logger.handlers[0].setFormatter(hostile.RaisingFormatter())
        case "factory":
            monkeypatch.setattr(logging, "_logRecordFactory", hostile.hostile_class("__init__", SystemExit, object))
    for _ in range(3):
        safely.get_logger("guarded").error("task %s failed", "t1")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("guarded: the project's logging raised ")
    assert line.endswith("The line was: task t1 failed")
    assert stream.getvalue() == ""


@pytest.mark.parametrize("kind", [SoftTimeLimitExceeded, TaskRevoked])
def test_a_task_can_be_interrupted_while_it_writes_a_log_line(stream: io.StringIO, kind: type[BaseException]) -> None:
    class Interrupted(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise kind

    logging.getLogger("guarded").addHandler(Interrupted())
    with pytest.raises(kind):
        safely.get_logger("guarded").error("task t1 failed")
    assert "task t1 failed" in stream.getvalue()
