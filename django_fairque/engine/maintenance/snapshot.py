"""The contents of all keys of one shard, as the checker reads them (``invariants.py``), and its reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from django_fairque.engine.model.head import MAX_HEAD_BYTES, split_head
from django_fairque.engine.model.ids import split_names
from django_fairque.engine.scripting.operations import Operation, Read, parse_scores, scan_keys, slices
from django_fairque.engine.scripting.user_record import read_user_record

if TYPE_CHECKING:
    from django_fairque.engine.scripting.commands import Commands


@dataclass(frozen=True)
class Violation:
    """A violation of an invariant. ``invariant`` is the invariant's name, ``key`` the key with the violation, and
    ``detail`` describes the violation.

    ``fix`` are the arguments with which ``repair.lua`` fixes the violation; empty if only a person can fix it.
    """

    invariant: str
    key: str
    detail: str
    fix: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.invariant}: {self.key}: {self.detail}"


@dataclass
class Snapshot:
    """The contents of all keys of one shard. Names of keys are without their ``prefix``."""

    prefix: str
    tasks: dict[str, Mapping[bytes, bytes]] = field(default_factory=dict)
    heads: dict[str, Mapping[bytes, bytes]] = field(default_factory=dict)
    """The fields in the heads of payloads, by task; empty for a payload without a head."""
    histories: set[str] = field(default_factory=set)
    logs: set[str] = field(default_factory=set)
    users: dict[str, Mapping[bytes, bytes]] = field(default_factory=dict)
    organizations: dict[str, Mapping[bytes, bytes]] = field(default_factory=dict)
    rings: dict[str, dict[str, float]] = field(default_factory=dict)
    """The ring of each organization: its members with their scores."""
    lanes: dict[str, dict[str, dict[str, float]]] = field(default_factory=lambda: {"urgent": {}, "bulk": {}})
    """The sorted sets of lanes urgent and bulk, by lane and organization: their members with scores."""
    normal: dict[str, dict[str, float]] = field(default_factory=dict)
    critical: dict[str, list[str]] = field(default_factory=dict)
    scheduled: dict[str, dict[str, float]] = field(default_factory=dict)
    states: dict[str, dict[str, float]] = field(default_factory=dict)
    leases: dict[str, set[str]] = field(default_factory=dict)
    members: dict[str, dict[str, float]] = field(default_factory=dict)
    counters: dict[str, Mapping[bytes, bytes]] = field(default_factory=dict)
    deps: dict[str, set[str]] = field(default_factory=dict)
    runs: dict[str, set[str]] = field(default_factory=dict)
    results: dict[str, dict[str, float]] = field(default_factory=dict)
    """The tasks of each user whose results count against the user's limit."""
    limits: dict[str, Mapping[bytes, bytes]] = field(default_factory=dict)
    """The records of limits by key, by id."""
    limit_users: dict[str, dict[str, float]] = field(default_factory=dict)
    """The users with waiting tasks at a limit, by lane and id of the limit, with a colon between them."""
    limit_queues: dict[str, dict[str, float]] = field(default_factory=dict)
    """The waiting tasks of a user at a limit, by the rest of the key: the length of the user, the user, the limit's id."""
    parked: dict[str, dict[str, float]] = field(default_factory=dict)
    """The entries of parked users, which can't start a task at a limit now, by the user or organization that is the
    reason."""
    remotes: dict[str, Mapping[bytes, bytes]] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)
    squatters: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Keys with a wrong type: the type that each has, and the type that it should have."""

    def registry(self, name: str) -> dict[str, float]:
        """Return the members of a registry, such as the ring, the held users, all users or all organizations, with scores."""
        return self.members.get(name, {})

    @property
    def stats(self) -> Mapping[bytes, bytes]:
        """The shard's counters."""
        return self.counters.get("stats", {})

    def waits_at(self, task_id: str) -> str:
        """Return the id of the limit at which a queued task waits; empty if there is none."""
        return decode_name(self.tasks[task_id].get(b"waits_at", b""))

    def get_organization(self, user: str) -> str | None:
        organization = self.users.get(user, {}).get(b"group")
        return None if organization is None else decode_name(organization)

    def find_tasks(self, state: str, field_name: str) -> set[tuple[str, str]]:
        """Return the ids of the tasks in this state, each with the value of this field."""
        return {
            (task_id, decode_name(record.get(field_name.encode(), b"")))
            for task_id, record in self.tasks.items()
            if record.get(b"state") == state.encode()
        }

    def violation(self, invariant: str, name: str, detail: str, *fix: str) -> Violation:
        """Return a violation at the key with this name."""
        return Violation(invariant, self.prefix + name, detail, fix)


def take_snapshot(commands: Commands) -> Operation[Snapshot]:
    prefix = str(commands.keys)
    snapshot = Snapshot(prefix)
    for keys in slices((yield from scan_keys(prefix)), 500):
        yield from _read(commands, snapshot, [decode_name(key)[len(prefix) :] for key in keys])
    for task_id, head in snapshot.heads.items():
        if head:
            snapshot.tasks[task_id] = {**head, **snapshot.tasks.get(task_id, {})}
    return snapshot


def _read(commands: Commands, snapshot: Snapshot, names: Sequence[str]) -> Operation[None]:
    prefix = str(commands.keys)
    types = yield Read([("TYPE", encode_name(prefix + name)) for name in names])
    for name, found in zip(names, types, strict=True):
        expected = get_key_type(name)
        if expected and found.decode() not in (expected, "none"):
            snapshot.squatters[name] = (found.decode(), expected)
    names = [name for name in names if name not in snapshot.squatters]
    wanted = [(name, *place) for name in names if (place := _place(snapshot, name))]
    if wanted:
        reads = [(_READS[kind][0], encode_name(prefix + name), *_READS[kind][1]) for name, kind, _, _ in wanted]
        for (name, kind, into, at), value in zip(wanted, (yield Read(reads)), strict=True):
            try:
                into[at] = _READS[kind][2](value)
            except ValueError:  # noqa: PERF203 - the others are read all the same
                snapshot.squatters[name] = ("string of another form", "user's record")


_READS: dict[str, tuple[str, tuple[Any, ...], Callable[[Any], Any]]] = {
    "hash": ("HGETALL", (), lambda reply: reply),
    "head": ("GETRANGE", (0, MAX_HEAD_BYTES - 1), lambda reply: split_head(reply)[0]),
    "user": ("GET", (), read_user_record),
    "zset": (
        "ZRANGE",
        (0, -1, "WITHSCORES"),
        lambda reply: {decode_name(key): score for key, score in parse_scores(reply)},
    ),
    "list": ("LRANGE", (0, -1), lambda reply: [decode_name(item) for item in reply]),
    "set": ("SMEMBERS", (), lambda reply: {decode_name(item) for item in reply}),
}
"""For each type of key the command that reads it, its arguments, and the function that converts the reply."""
_OWNERLESS = split_names("""
    stats wake workers worker revoked reply unique xcom alerts schedules delivered events outbox probe quarantine
    crashed_alone shards code_versions signing_keys deployments xcoms xcom_bytes limit_tags limit_waiting periods
    incidents incident runs acts act act_progress act_tasks
""")
"""Kinds of keys that belong to the whole shard, or expire by themselves."""
_REGISTRIES = split_names("""
    ring urgent bulk throttled due users groups grouped resolving limited:urgent limited:normal limited:bulk limits parked
    guaranteed
""")
_TYPES = {
    **dict.fromkeys(
        split_names("""
            stats task group worker xcom xcom_bytes events logs limit periods incidents:open incident act
            act_progress
        """),
        "hash",
    ),
    **dict.fromkeys(
        ("schedules", "schedules:last", "schedules:runs", "schedules:versions", "schedules:retired"), "hash"
    ),
    **dict.fromkeys((*_REGISTRIES, "state", "wake", "workers", "schedules:due", "code_versions"), "zset"),
    **dict.fromkeys(("schedules:workers", "results", "xcoms", "incidents", "workers:lost", "runs", "acts"), "zset"),
    **dict.fromkeys(("limit_users", "limit_tags", "limit_queue", "limit_waiting"), "zset"),
    **dict.fromkeys(("leases", "revoked", "deps", "run"), "set"),
    **dict.fromkeys(("history", "alerts", "deployments", "act_tasks"), "list"),
    **dict.fromkeys(("payload", "reply", "unique", "delivered", "user"), "string"),
}


def get_key_type(name: str) -> str | None:
    """Return the server's name of the type that a key with this name has; None if the queue has no such keys."""
    if name.startswith("queue:user:"):
        return "list" if name.endswith(":critical") else "zset"
    return _TYPES.get(name) or _TYPES.get(name.partition(":")[0])


def _place(snapshot: Snapshot, name: str) -> tuple[str, dict[str, Any], str] | None:
    """Return the type of a key, and the dict and the key in it for its value.

    If the value of a key is not needed, record the key's name in the snapshot and return None.
    """
    kind, _, rest = name.partition(":")
    if name.startswith("queue:user:"):
        user, _, lane = rest.removeprefix("user:").rpartition(":")
        if lane == "critical":
            return "list", snapshot.critical, user
        return "zset", snapshot.normal if lane == "normal" else snapshot.scheduled, user
    if name in (*_REGISTRIES, "mirrors"):
        return "zset", snapshot.members, name
    places: dict[str, tuple[str, dict[str, Any]]] = {
        "task": ("hash", snapshot.tasks),
        "user": ("user", snapshot.users),
        "group": ("hash", snapshot.organizations),
        "ring": ("zset", snapshot.rings),
        "urgent": ("zset", snapshot.lanes["urgent"]),
        "bulk": ("zset", snapshot.lanes["bulk"]),
        "state": ("zset", snapshot.states),
        "leases": ("set", snapshot.leases),
        "deps": ("set", snapshot.deps),
        "run": ("set", snapshot.runs),
        "remote": ("hash", snapshot.remotes),
        "payload": ("head", snapshot.heads),
        "results": ("zset", snapshot.results),
        "limit": ("hash", snapshot.limits),
        "limit_users": ("zset", snapshot.limit_users),
        "limit_queue": ("zset", snapshot.limit_queues),
        "parked": ("zset", snapshot.parked),
    }
    if kind in places:
        return (*places[kind], rest)
    if name == "stats":
        return "hash", snapshot.counters, name
    names = {"history": snapshot.histories, "logs": snapshot.logs}
    if kind in names:
        names[kind].add(rest)
    elif kind not in _OWNERLESS:
        snapshot.others.append(name)
    return None


def decode_name(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


def encode_name(name: str) -> bytes:
    """Return the bytes of a name from `decode_name`. Names may be any bytes, because damaged names must be read and fixed too."""
    return name.encode("utf-8", "surrogateescape")
