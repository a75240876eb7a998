"""Everything that a queue holds, read for the checker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from django_fairque.engine.scripting.operations import Operation, Read, parse_scores, scan_keys, slices

if TYPE_CHECKING:
    from django_fairque.engine.scripting.commands import Commands


@dataclass(frozen=True)
class Violation:
    """One thing that is not as it must be: the name of the ``invariant``, the ``key`` at which it was seen, and in
    ``detail`` what was seen.

    ``fix`` is what ``repair.lua`` does about it; empty if only a person can fix it.
    """

    invariant: str
    key: str
    detail: str
    fix: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.invariant}: {self.key}: {self.detail}"


@dataclass
class Snapshot:
    """Everything of one shard, without the ``prefix`` of its keys."""

    prefix: str
    tasks: dict[str, Mapping[bytes, bytes]] = field(default_factory=dict)
    payloads: set[str] = field(default_factory=set)
    histories: set[str] = field(default_factory=set)
    users: dict[str, Mapping[bytes, bytes]] = field(default_factory=dict)
    organizations: dict[str, Mapping[bytes, bytes]] = field(default_factory=dict)
    rings: dict[str, dict[str, float]] = field(default_factory=dict)
    """Of the organizations."""
    normal: dict[str, dict[str, float]] = field(default_factory=dict)
    critical: dict[str, list[str]] = field(default_factory=dict)
    scheduled: dict[str, dict[str, float]] = field(default_factory=dict)
    states: dict[str, dict[str, float]] = field(default_factory=dict)
    leases: dict[str, set[str]] = field(default_factory=dict)
    members: dict[str, dict[str, float]] = field(default_factory=dict)
    counters: dict[str, Mapping[bytes, bytes]] = field(default_factory=dict)
    deps: dict[str, set[str]] = field(default_factory=dict)
    runs: dict[str, set[str]] = field(default_factory=dict)
    remotes: dict[str, Mapping[bytes, bytes]] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)
    squatters: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Keys that are of another type than ours are: the type each has and the one that it should have."""

    def registry(self, name: str) -> dict[str, float]:
        """The ring, the throttled users, all users or all organizations, with their scores."""
        return self.members.get(name, {})

    @property
    def stats(self) -> Mapping[bytes, bytes]:
        """The shard's counters."""
        return self.counters.get("stats", {})

    def organization_of(self, user: str) -> str | None:
        organization = self.users.get(user, {}).get(b"group")
        return None if organization is None else name_of(organization)

    def tasks_with(self, state: str, field_name: str) -> set[tuple[str, str]]:
        """The tasks of this state, each with this field of its record."""
        return {
            (task_id, name_of(record.get(field_name.encode(), b"")))
            for task_id, record in self.tasks.items()
            if record.get(b"state") == state.encode()
        }

    def violation(self, invariant: str, name: str, detail: str, *fix: str) -> Violation:
        """What is wrong with the key of this name."""
        return Violation(invariant, self.prefix + name, detail, fix)


def take_snapshot(commands: Commands) -> Operation[Snapshot]:
    prefix = str(commands.keys)
    snapshot = Snapshot(prefix)
    for keys in slices((yield from scan_keys(prefix)), 500):
        yield from _read(commands, snapshot, [name_of(key)[len(prefix) :] for key in keys])
    return snapshot


def _read(commands: Commands, snapshot: Snapshot, names: Sequence[str]) -> Operation[None]:
    prefix = str(commands.keys)
    types = yield Read([("TYPE", bytes_of(prefix + name)) for name in names])
    for name, found in zip(names, types, strict=True):
        expected = type_of(name)
        if expected and found.decode() not in (expected, "none"):
            snapshot.squatters[name] = (found.decode(), expected)
    names = [name for name in names if name not in snapshot.squatters]
    wanted = [(name, *place) for name in names if (place := _place(snapshot, name))]
    if wanted:
        reads = [(_READS[kind][0], bytes_of(prefix + name), *_READS[kind][1]) for name, kind, _, _ in wanted]
        for (_, kind, into, at), value in zip(wanted, (yield Read(reads)), strict=True):
            into[at] = _READS[kind][2](value)


_READS: dict[str, tuple[str, tuple[Any, ...], Callable[[Any], Any]]] = {
    "hash": ("HGETALL", (), lambda reply: reply),
    "zset": (
        "ZRANGE",
        (0, -1, "WITHSCORES"),
        lambda reply: {name_of(key): score for key, score in parse_scores(reply)},
    ),
    "list": ("LRANGE", (0, -1), lambda reply: [name_of(item) for item in reply]),
    "set": ("SMEMBERS", (), lambda reply: {name_of(item) for item in reply}),
}
"""How a key of a type is read: the command, its arguments, and what its reply becomes."""
_OWNERLESS = (
    *("stats", "wake", "workers", "worker", "revoked", "reply", "unique", "xcom", "alerts", "schedules"),
    *("delivered", "events", "outbox", "probe", "quarantine", "shards"),
)
"""Kinds of keys that belong to the shard or end by themselves."""
_REGISTRIES = ("ring", "throttled", "due", "users", "groups", "grouped", "resolving")
_TYPES = {
    **dict.fromkeys(("stats", "task", "user", "group", "worker", "xcom", "events"), "hash"),
    **dict.fromkeys(("schedules", "schedules:last"), "hash"),
    **dict.fromkeys((*_REGISTRIES, "state", "wake", "workers", "schedules:due"), "zset"),
    **dict.fromkeys(("leases", "revoked", "deps", "run"), "set"),
    **dict.fromkeys(("history", "alerts"), "list"),
    **dict.fromkeys(("payload", "reply", "unique", "delivered"), "string"),
}


def type_of(name: str) -> str | None:
    """The server's word for what a key of this name holds; None for a name that is not ours."""
    if name.startswith("queue:user:"):
        return "list" if name.endswith(":critical") else "zset"
    return _TYPES.get(name) or _TYPES.get(name.partition(":")[0])


def _place(snapshot: Snapshot, name: str) -> tuple[str, dict[str, Any], str] | None:
    """How to read a key and where its value goes; None for a key whose name is all that matters."""
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
        "user": ("hash", snapshot.users),
        "group": ("hash", snapshot.organizations),
        "ring": ("zset", snapshot.rings),
        "state": ("zset", snapshot.states),
        "leases": ("set", snapshot.leases),
        "deps": ("set", snapshot.deps),
        "run": ("set", snapshot.runs),
        "remote": ("hash", snapshot.remotes),
    }
    if kind in places:
        return (*places[kind], rest)
    if name == "stats":
        return "hash", snapshot.counters, name
    names = {"payload": snapshot.payloads, "history": snapshot.histories}
    if kind in names:
        names[kind].add(rest)
    elif kind not in _OWNERLESS:
        snapshot.others.append(name)
    return None


def name_of(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


def bytes_of(name: str) -> bytes:
    """What `name_of` was given: any bytes, for damaged names must be read and fixed too."""
    return name.encode("utf-8", "surrogateescape")
