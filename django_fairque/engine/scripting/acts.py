"""Steering acts (pauses, weights, limits, cancelations and so on), with the values before and after, for an audit.

Operations record an act only if the context has a recorder. Without a recorder, acts cause no additional reads.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from django_fairque.engine.model.errors import RedisConnectionError, ShardsAwayError
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.scripting.operations import Evaluate, Operation

T = TypeVar("T")
Values = Mapping[str, Any]
"""Values of an object by name, as JSON values."""


@dataclass(frozen=True)
class Act:
    """One steering act on a ``queue``, such as ``name`` "pause" on an object of the ``kind`` "user" with the id ``subject``.

    ``before`` and ``after`` have the values that differ, and the numbers of the objects that were changed.
    """

    queue: str
    name: str
    kind: str
    subject: str = ""
    before: Values = field(default_factory=dict)
    after: Values = field(default_factory=dict)


COUNTED_VALUES = frozenset((*(state.value for state in TaskState), "requeued", "discarded", "forgotten", "repairs"))
"""Names of values that are numbers of changed objects. The numbers of several acts are added."""


def merge_acts(acts: Sequence[Act]) -> Act:
    """Return one act that summarizes several acts: the first values before, the last values after, and the sums of
    counted values.
    """
    before: dict[str, Any] = {}
    after: dict[str, Any] = {}
    for act in acts:
        for merged, values in ((before, act.before), (after, act.after)):
            merged.update(
                {name: merged[name] + values[name] for name in COUNTED_VALUES & merged.keys() & values.keys()}
            )
        before = {**act.before, **before}
        after = {
            **after,
            **{name: value for name, value in act.after.items() if not (name in COUNTED_VALUES and name in after)},
        }
    names, subjects = (
        ", ".join(dict.fromkeys(texts)) for texts in zip(*((act.name, act.subject) for act in acts), strict=True)
    )
    return replace(acts[0], name=names, subject=subjects, before=before, after=after)


@dataclass(frozen=True)
class Recorder:
    """Receives acts, and calls ``write`` with each. A coroutine calls ``write`` through ``in_thread``, if that is set."""

    write: Callable[[Act], None]
    in_thread: Callable[[Callable[[], Any]], Awaitable[Any]] | None = None


_recorder: ContextVar[Recorder | None] = ContextVar("fairque_recorder", default=None)


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Record the acts of the ``with`` block, in this thread or coroutine, with this recorder and no other."""
    token = _recorder.set(recorder)
    try:
        yield
    finally:
        _recorder.reset(token)


def is_recording() -> bool:
    """Return whether the context has a recorder."""
    return _recorder.get() is not None


def record_act(
    act: Act,
    steps: Operation[T],
    read: Callable[[], Operation[Values]] | None = None,
    describe: Callable[[T], Values] | None = None,
) -> Operation[T]:
    """Run the steps, and record the act unless their result is False or 0, which means that nothing was changed.

    Args:
        act: the act; the values are added.
        steps: make the change.
        read: reads the values, before the steps and after them.
        describe: returns more values from the result of the steps.
    """
    recorder = _recorder.get()
    if recorder is None:
        return (yield from steps)
    before = yield from _read_values(read)
    away: ShardsAwayError | None = None
    more: Values = {}
    try:
        result = yield from steps
    except ShardsAwayError as error:  # some shards can't be reached, but the others were changed
        away, more = error, {"error": str(error)}
    else:
        if isinstance(result, int) and not result:
            return result
        more = describe(result) if describe else {}
    after = yield from _read_values(read)
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    complete = replace(
        act,
        before={**act.before, **{name: before.get(name) for name in names if name in before}},
        after={**act.after, **{name: after.get(name) for name in names if name in after}, **more},
    )
    yield Evaluate(partial(recorder.write, complete), recorder.in_thread)
    if away is not None:
        raise away
    return result


def _read_values(read: Callable[[], Operation[Values]] | None) -> Operation[Values]:
    """Return the values of the object; none if they can't be read. The act must not fail because these values are on a
    shard that can't be reached.
    """
    if read is None:
        return {}
    try:
        return (yield from read())
    except RedisConnectionError:
        return {}
