"""What a server can do and keeps, found by trying: one short-lived key is written, commands are called that do nothing.

Asking for the configuration would be simpler, and is refused where somebody else runs the server.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from redis import exceptions as redis_errors

from django_fairque.engine.transport.cluster import is_cluster
from django_fairque.engine.transport.retry_policy import FAILURES, explained

TRIES = 3
"""Writes in a row that are on disk at once, if every write is: on an idle server the first of them is in any case."""
SYNCED_WITHIN = 1500
"""Milliseconds in which a server that syncs every second has synced."""
CONFIRMED_WITHIN = 1000
"""Milliseconds for replicas."""
MISSING = "fairque_probe"
"""A function that nobody has."""

UNKNOWN = "unknown"
_UNDECLARED = "#!lua flags=no-writes\nreturn redis.call('EXISTS', KEYS[1] .. ':undeclared')"


@dataclass
class Examination:
    """``durability`` is memory, aof-no, aof-everysec, aof-always, replicated(n), managed-log or unknown. ``functions``,
    ``scripts`` and ``undeclared_keys`` are yes, no or not permitted (to this user). ``refusals`` say what can't work."""

    durability: str
    functions: str
    scripts: str
    undeclared_keys: str
    refusals: list[str] = field(default_factory=list)


def examine(client: Any, key: str, *, replicas: int = 0, has_log: bool = False) -> Examination:
    """Try the server that has ``key``, which should not exist; of a cluster, one of its nodes.

    Args:
        replicas: how many must confirm each push.
        has_log: it is known that what it acknowledges is in a log of several machines.

    Raises:
        RedisConnectionError: it can't be reached.
    """
    try:
        node = client.get_redis_connection(client.get_node_from_key(key)) if is_cluster(client) else client
        functions = _answer(node, "FCALL", MISSING, 1, key)
        scripts = _answer(node, "EVALSHA", "0" * 40, 1, key)
        undeclared = _answer(node, "EVAL", _UNDECLARED, 1, key) if scripts == "yes" else scripts
        found = Examination(UNKNOWN, functions, scripts, undeclared)
        found.durability = "managed-log" if has_log else _durability(node, key)
        if replicas:
            _replication(node, key, replicas, found)
    except FAILURES as error:
        raise explained(error, "a question of the doctor") from error
    found.refusals += _refusals(found)
    return found


def _answer(node: Any, *command: Any) -> str:
    try:
        node.execute_command(*command)
    except redis_errors.NoPermissionError:
        return "not permitted"
    except redis_errors.NoScriptError:
        return "yes"
    except redis_errors.ResponseError as error:
        return "yes" if str(error).startswith("Function not found") else "no"
    return "yes"


def _durability(node: Any, key: str) -> str:
    if not node.execute_command("INFO", "persistence").get("aof_enabled"):
        return "memory"
    try:
        if all(_synced(node, key, 1) for _ in range(TRIES)):
            return "aof-always"
        return "aof-everysec" if _synced(node, key, SYNCED_WITHIN) else "aof-no"
    except (redis_errors.NoPermissionError, redis_errors.ReadOnlyError, redis_errors.OutOfMemoryError):
        return UNKNOWN


def _synced(node: Any, key: str, milliseconds: int) -> bool:
    """Whether a write is on disk within this time."""
    return bool(_after_write(node, key, "WAITAOF", 1, 0, milliseconds)[0])


def _replication(node: Any, key: str, wanted: int, found: Examination) -> None:
    try:
        confirmed = int(_after_write(node, key, "WAIT", wanted, CONFIRMED_WITHIN))
    except redis_errors.OutOfMemoryError:
        return  # it takes no write that could be confirmed; health says so
    if confirmed >= wanted:
        found.durability = f"replicated({confirmed})"
    else:
        found.refusals.append(
            f"{confirmed} of the {wanted} replicas that replicas_to_confirm asks for confirm a write: no push succeeds"
        )


def _after_write(node: Any, key: str, *command: Any) -> Any:
    """What a command answers that waits for the writes of its own connection."""
    with node.pipeline(transaction=False) as pipe:
        pipe.execute_command("SET", key, "1", "PX", 10_000)
        pipe.execute_command(*command)
        return pipe.execute()[1]


def _refusals(found: Examination) -> list[str]:
    if found.functions != "yes" and found.scripts != "yes":
        text = f"neither functions ({found.functions}) nor scripts ({found.scripts}) can be used"
        return [
            f"{text}: connect to the server itself and not to a proxy, as a user that manage.py fairque_acl describes"
        ]
    if found.undeclared_keys == "no":
        text = "the server refuses keys that a script did not declare, and the queues need them"
        return [f"{text}: use another (those that are sold as serverless do so)"]
    return []
