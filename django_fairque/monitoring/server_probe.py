"""Tests a server: which commands it permits, and how safely it stores writes. Requests are sent once, without
retries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from redis import exceptions as redis_errors

from django_fairque.engine.transport.cluster import is_cluster
from django_fairque.engine.transport.retry_policy import CLIENT_ERRORS, translate_error
from django_fairque.engine.transport.server_checks import CHECKED_INFO_SECTIONS


def read_server_info(client: Any) -> dict[str, Mapping[str, Any]]:
    """Return the reply to INFO of a client's server, under an empty name; for a cluster, the reply of each primary.
    Requests are sent once, without retries.

    Raises:
        RedisConnectionError: the server can't be reached.
        FairQueueError: the server answers with an error.
    """
    options = {"target_nodes": "primaries"} if is_cluster(client) else {}
    try:
        reply = client.execute_command("INFO", *CHECKED_INFO_SECTIONS, **options)
    except CLIENT_ERRORS as error:
        raise translate_error(error) from error
    return {"": reply} if "redis_version" in reply else reply  # a cluster with one primary also replies in this form


SYNC_PROBES = 3
"""Number of writes in a row that must be on disk at once before the server counts as one that syncs every write. On an
idle server the first write is always on disk at once."""
SYNC_TIMEOUT_MS = 1500
"""Milliseconds to wait for a sync, if the server syncs every second."""
CONFIRM_TIMEOUT_MS = 1000
"""Milliseconds to wait until replicas confirm a write."""
PROBE_FUNCTION = "fairque_probe"
"""A name of a function that no server has."""

UNKNOWN_DURABILITY = "unknown"
_UNDECLARED_KEY_SCRIPT = "#!lua flags=no-writes\nreturn redis.call('EXISTS', KEYS[1] .. ':undeclared')"


@dataclass
class ServerReport:
    """``durability`` is memory, aof-no, aof-everysec, aof-always, replicated(n), managed-log, managed-log-async or
    unknown. ``functions``, ``scripts`` and ``undeclared_keys`` are yes, no or not permitted (to this user).
    ``refusals`` are sentences about operations that can't work.
    """

    durability: str
    functions: str
    scripts: str
    undeclared_keys: str
    refusals: list[str] = field(default_factory=list)


def probe_server(client: Any, key: str, *, replicas: int = 0, log: str | None = None) -> ServerReport:
    """Test the server that stores ``key``, which should not exist; in a cluster this is one of the nodes.

    Args:
        replicas: the number of replicas that must confirm each push.
        log: the durability of a server that is known to keep a log on several machines; its durability is then not
            tested.

    Raises:
        RedisConnectionError: the server can't be reached.
    """
    try:
        node = client.get_redis_connection(client.get_node_from_key(key)) if is_cluster(client) else client
        functions = _is_supported(node, "FCALL", PROBE_FUNCTION, 1, key)
        scripts = _is_supported(node, "EVALSHA", "0" * 40, 1, key)
        undeclared = _is_supported(node, "EVAL", _UNDECLARED_KEY_SCRIPT, 1, key) if scripts == "yes" else scripts
        found = ServerReport(UNKNOWN_DURABILITY, functions, scripts, undeclared)
        found.durability = log or _probe_durability(node, key)
        if replicas:
            _probe_replication(node, key, replicas, found)
    except CLIENT_ERRORS as error:
        raise translate_error(error, "a question of the doctor") from error
    if functions != "yes" and scripts != "yes":
        text = f"neither functions ({functions}) nor scripts ({scripts}) can be used"
        found.refusals.append(
            f"{text}: connect to the server itself and not to a proxy, as a user that manage.py fairque_acl describes"
        )
    elif undeclared == "no":
        text = "the server refuses keys that a script did not declare, and the queues need them"
        found.refusals.append(f"{text}: use another (those that are sold as serverless do so)")
    return found


def _is_supported(node: Any, *command: Any) -> str:
    try:
        node.execute_command(*command)
    except redis_errors.NoPermissionError:
        return "not permitted"
    except redis_errors.NoScriptError:
        return "yes"
    except redis_errors.ResponseError as error:
        return "yes" if str(error).startswith("Function not found") else "no"
    return "yes"


def _probe_durability(node: Any, key: str) -> str:
    if not node.execute_command("INFO", "persistence").get("aof_enabled"):
        return "memory"
    try:
        if all(_is_synced(node, key, 1) for _ in range(SYNC_PROBES)):
            return "aof-always"
        return "aof-everysec" if _is_synced(node, key, SYNC_TIMEOUT_MS) else "aof-no"
    except (redis_errors.NoPermissionError, redis_errors.ReadOnlyError, redis_errors.OutOfMemoryError):
        return UNKNOWN_DURABILITY


def _is_synced(node: Any, key: str, milliseconds: int) -> bool:
    """Write a key, and return whether the write is on disk within this number of milliseconds."""
    return bool(_run_after_write(node, key, "WAITAOF", 1, 0, milliseconds)[0])


def _probe_replication(node: Any, key: str, wanted: int, found: ServerReport) -> None:
    try:
        confirmed = int(_run_after_write(node, key, "WAIT", wanted, CONFIRM_TIMEOUT_MS))
    except redis_errors.OutOfMemoryError:
        return  # the server refuses writes, so replicas can't confirm any; the health reports this
    if confirmed >= wanted:
        found.durability = f"replicated({confirmed})"
    else:
        found.refusals.append(
            f"{confirmed} of the {wanted} replicas that replicas_to_confirm asks for confirm a write: no push succeeds"
        )


def _run_after_write(node: Any, key: str, *command: Any) -> Any:
    """Write a key, then return the reply to a command that waits for the writes of the same connection."""
    with node.pipeline(transaction=False) as pipe:
        pipe.execute_command("SET", key, "1", "PX", 10_000)
        pipe.execute_command(*command)
        return pipe.execute()[1]
