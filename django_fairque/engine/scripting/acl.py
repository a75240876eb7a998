"""The smallest permissions that a producer, a worker and a viewer need on the server, as ACL rules.

The server checks the commands inside a script or function against the rights of the user that calls it, so each role
also needs the commands that scripts use. Rules can name commands and keys, but not functions. A producer can't take
tasks because it has no right to the keys of leases, which the scripts use before they write anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from django_fairque.engine.model.ids import split_names

CallMode = Literal["functions", "scripts"]

CONNECT_COMMANDS = ("ping", "select", "info", "time", "client|setinfo", "client|setname")
CLUSTER_COMMANDS = (
    *("cluster|slots", "cluster|shards", "cluster|nodes", "cluster|myid", "command", "asking", "readonly", "readwrite"),
)
"""Commands that a cluster's client sends."""

READ_COMMANDS = split_names("""
    exists get getrange hexists strlen hget hgetall hkeys hlen hmget hrandfield lindex llen lpos lrange mget pttl
    scard sismember smembers srandmember zcard zcount zmscore zrandmember zrange zrangebyscore zrank zrevrange
    zscore
""")
WRITE_COMMANDS = split_names("""
    del hdel hincrby hset hsetnx lpop linsert lpush lrem ltrim mset persist pexpire rpush sadd set setnx srem zadd zrem
    zremrangebyscore
""")
CONFIRM_COMMANDS = ("wait", "waitaof")
"""Commands that wait until replicas, or the disk, have a write."""
WORK_COMMANDS = ("bzpopmin", "scan", "type")
"""Commands that wait for work, and commands with which `fairque_check` searches a queue for damage."""
LOAD_COMMANDS = ("function|load",)
CALL_COMMANDS: dict[CallMode, tuple[str, ...]] = {
    "functions": ("fcall",),
    "scripts": ("evalsha", "eval", "script|load"),
}

PRODUCER_KEYS = split_names("""
    stats stats:* ring ring:* urgent urgent:* bulk bulk:* groups grouped group:* wake wake:* users user:* periods:* throttled due
    limit:* limit_users:* limit_tags:* limit_queue:* limit_waiting:* limited:* limits parked parked:* guaranteed
    queue:user:* state:* task:* payload:* history:* deps:* resolving run:* xcom:* xcoms:* xcom_bytes:* results:* logs:*
    alerts schedules schedules:* unique:* delivered:* events reply:* revoked:* probe outbox mirrors remote:* shards absent
    signing_keys incidents incidents:open incident:* runs acts act:* act_progress:*
    act_tasks:*
""")
"""A shard's keys that pushing, reading and canceling may write: all except leases and workers."""
WORKER_RECORD_KEYS = ("workers", "workers:lost", "worker:*", "deployments")


@dataclass(frozen=True)
class Role:
    """The rights of a role: its commands, and the patterns of its keys after the shard's prefix. The pattern ``""``
    stands for every key.
    """

    about: str
    commands: tuple[str, ...]
    writes: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    calls: bool = True


ROLES = {
    "producer": Role(
        "enqueues, looks and cancels what has not begun",
        (*READ_COMMANDS, *WRITE_COMMANDS, *CONFIRM_COMMANDS),
        PRODUCER_KEYS,
        WORKER_RECORD_KEYS,
    ),
    "worker": Role(
        "does everything that queues do", (*READ_COMMANDS, *WRITE_COMMANDS, *CONFIRM_COMMANDS, *WORK_COMMANDS), ("",)
    ),
    "viewer": Role("looks, and changes nothing", READ_COMMANDS, reads=("",), calls=False),
    "deployer": Role("loads the functions (manage.py fairque_functions), and sees no task", LOAD_COMMANDS, calls=False),
}


def rules(role: str, mode: CallMode = "functions", prefix: str = "fq", *, cluster: bool = False) -> list[str]:
    """Return the rules of a role, in the form that follows a user's name in ``ACL SETUSER`` or in a file of users."""
    wanted = ROLES[role]
    commands = [
        *CONNECT_COMMANDS,
        *(CLUSTER_COMMANDS if cluster else ()),
        *wanted.commands,
        *(CALL_COMMANDS[mode] if wanted.calls else ()),
    ]
    return [
        *("resetkeys", "resetchannels"),
        *(f"~{_pattern(prefix, key)}" for key in wanted.writes),
        *(f"%R~{_pattern(prefix, key)}" for key in wanted.reads),
        "-@all",
        *(f"+{command}" for command in commands),
    ]


def _pattern(prefix: str, key: str) -> str:
    return f"{prefix}:{{*}}:{key}" if key else f"{prefix}:*"
