"""What the server says of itself; part of ``check --deploy``, and the only check that needs the network.

It never takes longer than `DEADLINE`, whatever the server or the name service does: the questions are asked in a thread
that is left to its time-outs then.
"""

from __future__ import annotations

import threading
import time
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from .caches import redis_caches, shared
from .messages import configured, error, resolved, warning

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from django.core.checks import CheckMessage

    from django_fairque.conf import RedisConfig

DEADLINE = 2.5
"""Seconds for all questions together."""
TIMEOUT = 1.0
"""Seconds for one connection, and for one answer."""

_REFUSES = ("fairque.E015", "Nothing can be enqueued until this is mended.")
_KEEPS = ("fairque.W004", "Set appendonly yes (and appendfsync everysec), on a disk with room.")
_OLD = "Redis 7.2.5 and Valkey 7.2.6 are the oldest that are fit for production."

# Kind of finding -> number and what to do; what is not here changes from hour to hour, and is fairque_health's affair.
_NUMBERS = {
    "replica": _REFUSES,
    "disk": _REFUSES,
    "persistence": _KEEPS,
    "snapshot": _KEEPS,
    "eviction": ("fairque.E013", "Set maxmemory-policy noeviction: any other throws tasks away when memory is short."),
    "unsupported": ("fairque.E014", _OLD),
    "version": ("fairque.W005", _OLD),
}


def check_server(**_: Any) -> list[CheckMessage]:
    """Whether the server can be reached, takes tasks, and keeps them. The embedded server needs no question."""
    from django_fairque.engine.errors import LuaScriptError, RedisConnectionError, ServerRefusedError

    config = configured()
    if config is None or (mine := resolved(config.redis)).is_embedded:
        return []
    until = time.monotonic() + DEADLINE
    try:
        info = _info(mine, until)
    except (ServerRefusedError, LuaScriptError) as refused:
        return [error(_REFUSES[0], f"{mine.address} refuses the queues: {refused}", _REFUSES[1])]
    except RedisConnectionError as failed:
        hint = "Nothing could be said of it; check again from where it can be reached."
        return [warning("fairque.W006", f"{mine.address} was not checked: {failed}", hint)]
    return [*_findings(mine, info), *_hidden_caches(config.redis.cache, mine, info, until)]


def _findings(redis: RedisConfig, info: Mapping[str, Any]) -> Iterator[CheckMessage]:
    from django_fairque.engine.diagnosis import findings

    for kind, text in findings(info):
        if kind in _NUMBERS:
            number, hint = _NUMBERS[kind]
            yield (error if ".E" in number else warning)(number, f"{redis.address}: {text}", hint)


def _hidden_caches(
    queue_alias: str | None, mine: RedisConfig, info: Mapping[str, Any], until: float
) -> Iterator[CheckMessage]:
    """Caches in the queues' database whose settings call the same server by another name."""
    from django_fairque.engine.errors import FairQueueError

    for alias, cache in redis_caches(queue_alias):
        if cache.database == mine.database or cache.db != mine.db:
            continue  # reported by `check_caches`, or another database
        try:
            same = _info(cache, until).get("run_id") == info.get("run_id") is not None
        except FairQueueError:  # a cache that is down or not ours to see is nobody's mistake here
            continue
        if same:
            yield shared(mine, alias)


def _info(redis: RedisConfig, until: float) -> Mapping[str, Any]:
    """``INFO`` of a server; `FairQueueError` when it can't be had in time."""
    from django_fairque.engine.errors import RedisConnectionError

    answers: SimpleQueue[Mapping[str, Any] | Exception] = SimpleQueue()
    threading.Thread(target=_ask, args=(redis, answers), name="fairque-check", daemon=True).start()
    try:
        answer = answers.get(timeout=max(0.0, until - time.monotonic()))
    except Empty:
        raise RedisConnectionError(f"it gave no answer within {DEADLINE:g} s") from None
    if isinstance(answer, Exception):
        raise answer
    return answer


def _ask(redis: RedisConfig, answers: SimpleQueue[Mapping[str, Any] | Exception]) -> None:
    from django_fairque.conf.clients import close_client
    from django_fairque.engine.diagnosis import server_info

    quick = redis.model_copy(update={"socket_timeout": TIMEOUT, "socket_connect_timeout": TIMEOUT})
    try:
        client = quick.create_redis_client()
        try:
            answers.put(server_info(client))
        finally:
            close_client(client)
    except Exception as failed:  # noqa: BLE001 - raised again by the one who asks
        answers.put(failed)
