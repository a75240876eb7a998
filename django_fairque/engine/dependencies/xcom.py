"""Values that tasks pass to each other by key, within a namespace: a pipeline's run, or any name of one's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from django_fairque.engine.model import payload as json_payload
from django_fairque.engine.model.durations import positive_us, to_us
from django_fairque.engine.model.errors import TaskValidationError, short
from django_fairque.engine.model.ids import check_id
from django_fairque.engine.scripting.operations import Driver, Operation, Read

if TYPE_CHECKING:
    from django_fairque.engine.scripting.commands import Commands

MAX_XCOM_KEYS = 1000
"""In one namespace, so that listing one is bounded."""
MAX_XCOM_VALUES_PER_PUSH = 1000
XCOM_VALUE_MISSING = object()


def push(
    commands: Commands, namespace: str, values: Mapping[str, Any], ttl: float | None, now: float | None
) -> Operation[None]:
    if not values:
        return
    if len(values) > MAX_XCOM_VALUES_PER_PUSH:
        raise TaskValidationError(f"at most {MAX_XCOM_VALUES_PER_PUSH} values are kept in one call, got {len(values)}")
    length = to_us(commands.config.result_ttl) if ttl is None else positive_us(ttl, "ttl")
    args: list[Any] = [length, MAX_XCOM_KEYS, len(values)]
    for key, value in values.items():
        args.append(check_id(key, "an xcom key"))
        args.append(json_payload.dumps(value, limit=commands.config.max_payload_bytes, what=f"value {short(key)}"))
    kept = yield commands.call("xcom", args, now, xcom=namespace)
    if not kept:
        raise TaskValidationError(
            f"namespace {namespace!r} holds at most {MAX_XCOM_KEYS} keys and these would be more; nothing was kept"
        )


def pull(commands: Commands, namespace: str, key: str, default: Any) -> Operation[Any]:
    (value,) = yield Read([("HGET", commands.keys.xcom(namespace), check_id(key, "an xcom key"))])
    if value is not None:
        return json_payload.loads(value, what=f"value {short(key)}")
    if default is XCOM_VALUE_MISSING:
        raise KeyError(key)
    return default


def items(commands: Commands, namespace: str) -> Operation[dict[str, Any]]:
    (found,) = yield Read([("HGETALL", commands.keys.xcom(namespace))])
    return {key.decode(): json_payload.loads(value, what="value") for key, value in sorted(found.items())}


def keys(commands: Commands, namespace: str) -> Operation[list[str]]:
    (found,) = yield Read([("HKEYS", commands.keys.xcom(namespace))])
    return sorted(key.decode() for key in found)


class XCom:
    """One namespace of values, returned by ``queue.xcom(namespace)``.

    Values are any JSON, each of at most ``max_payload_bytes`` bytes; a namespace has at most 1000 keys. ``now`` is
    that of the queue.
    """

    def __init__(self, commands: Commands, run: Driver, namespace: str) -> None:
        self._commands, self._run = commands, run
        self.namespace = check_id(namespace, "namespace")

    def push(self, key: str, value: Any, *, ttl: float | None = None, now: float | None = None) -> None:
        """Keep a value, in place of an earlier one.

        ``key`` is a text of at most 256 bytes, ``value`` any JSON value. ``ttl`` is the number of seconds for which
        the namespace lasts at least; ``result_ttl`` (86,400) by default. The namespace ends as a whole.

        Raises `TaskValidationError` if the namespace would have too many keys, and `TaskSerializationError` if the
        value is not JSON or too large.
        """
        self._run(push(self._commands, self.namespace, {key: value}, ttl, now))

    def push_many(self, values: Mapping[str, Any], *, ttl: float | None = None, now: float | None = None) -> None:
        """Keep several values in one call: all of them or none.

        ``values`` are at most 1000 values by key. ``ttl`` and the errors are those of `push`.
        """
        self._run(push(self._commands, self.namespace, values, ttl, now))

    def pull(self, key: str, default: Any = XCOM_VALUE_MISSING) -> Any:
        """Return the value of a key.

        ``key`` is its name. ``default`` is returned if there is no value. Raises `KeyError` if there is none and no
        ``default`` is given.
        """
        return self._run(pull(self._commands, self.namespace, key, default))

    def items(self) -> dict[str, Any]:
        """Return all values by key."""
        return self._run(items(self._commands, self.namespace))

    def keys(self) -> list[str]:
        """Return the keys that have values, sorted."""
        return self._run(keys(self._commands, self.namespace))
