"""Describing errors, naming values and writing log lines, with objects of which any part raises."""

from __future__ import annotations

import logging
from functools import reduce
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from django_fairque import safely
from django_fairque.engine.model.errors import short
from django_fairque.engine.model.outcome import describe

from .hostile import ATTRIBUTES, METHODS, RAISED

BASES = (Exception, BaseException, SystemExit, ValueError, KeyError)
LOGGER = "fuzzed"


@st.composite
def hostile_kinds(draw: st.DrawFn, bases: tuple[type, ...] = BASES) -> type[Any]:
    """A class of which a random subset of special methods and attributes raises, each something else."""
    body: dict[str, Any] = {}
    for name in draw(st.sets(st.sampled_from((*METHODS, *ATTRIBUTES)))):
        raised = draw(st.sampled_from(RAISED))

        def fail(*_: object, raised: type[BaseException] = raised, **__: object) -> Any:
            raise raised("a special method raised this")

        body[name] = property(fail) if name in ATTRIBUTES else fail
    return type("Hostile", (draw(st.sampled_from(bases)),), body)


def raised_while(before: BaseException, kind: type[Any]) -> BaseException:
    """Raise an error of this class while another is handled, and return it."""
    try:
        try:
            raise before  # noqa: TRY301 - it is the context of the next one
        except BaseException:  # noqa: BLE001 - it may have any base
            raise kind("refused")  # noqa: B904 - its context is wanted
    except BaseException as error:  # noqa: BLE001 - as above
        return error


def raised_in_a_chain(kinds: list[type[Any]]) -> BaseException:
    first: BaseException = ValueError("the first error")
    return reduce(raised_while, kinds, first)


@given(st.lists(hostile_kinds(), min_size=1, max_size=4))
def test_every_error_of_every_chain_is_described(kinds: list[type[Any]]) -> None:
    text, trace = describe(raised_in_a_chain(kinds))
    assert b"Hostile" in text
    assert b"in raised_while" in trace


@given(hostile_kinds((object, str, dict, list, int)))
def test_any_value_can_be_named_in_an_error(kind: type[Any]) -> None:
    try:
        value = kind()
    except BaseException:  # noqa: BLE001 - what can't be made needs no name
        return
    try:
        name = short(value)
    except BaseException as error:  # noqa: BLE001 - pytest can't show this one
        raise AssertionError(f"short() raised {type(error).__name__}") from None
    assert 0 < len(name) <= 80


PARTS = st.fixed_dictionaries({name: st.sampled_from([None, *RAISED]) for name in ("emit", "filter", "format")})


@given(PARTS, st.lists(hostile_kinds(), min_size=1, max_size=2), hostile_kinds((object,)))
def test_log_calls_never_raise(
    parts: dict[str, type[BaseException] | None], kinds: list[type[Any]], of_argument: type[Any]
) -> None:
    def broken(name: str, otherwise: Any) -> Any:
        def call(*_: object) -> Any:
            if (raised := parts[name]) is not None:
                raise raised("a part of logging raised this")
            return otherwise

        return call

    handler, logger = logging.Handler(), logging.getLogger(LOGGER)
    formatter = logging.Formatter()
    handler.emit = lambda record: broken("emit", None)(handler.format(record))  # type: ignore[method-assign]
    formatter.format = broken("format", "")  # type: ignore[method-assign]
    handler.setFormatter(formatter)
    handler.addFilter(broken("filter", otherwise=True))
    logger.propagate, logger.handlers = False, [handler]
    error, guarded = raised_in_a_chain(kinds), safely.get_logger(LOGGER)
    guarded.error("it failed: %s %s", error, of_argument(), exc_info=error)
    try:
        raise error  # noqa: TRY301 - `exception` is called while it is handled
    except BaseException:  # noqa: BLE001 - it may have any base
        guarded.exception("it failed again: %r", error)
