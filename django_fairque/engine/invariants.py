"""The checker: what a queue holds, compared with the invariants of the design.

It reads every key of the queue (SCAN), so it is for operators and tests, not for a request. On a live server two
looks may straddle a change; a violation is reported only if it is seen in three looks in a row.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .records import TaskState
from .steps import Read, Steps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from .commands import Commands

LOOKS = 3


@dataclass(frozen=True)
class Violation:
    """One thing that is not as it must be: the invariant's name, the key it was seen at, and what was seen."""

    invariant: str
    key: str
    detail: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.key}: {self.detail}"


@dataclass
class Snapshot:
    """Everything of one shard."""

    tasks: dict[str, Mapping[bytes, bytes]] = field(default_factory=dict)
    payloads: set[str] = field(default_factory=set)
    histories: set[str] = field(default_factory=set)
    users: dict[str, Mapping[bytes, bytes]] = field(default_factory=dict)
    normal: dict[str, dict[str, float]] = field(default_factory=dict)
    critical: dict[str, list[str]] = field(default_factory=dict)
    states: dict[str, dict[str, float]] = field(default_factory=dict)
    leases: dict[str, set[str]] = field(default_factory=dict)
    members: dict[str, dict[str, float]] = field(default_factory=dict)
    counters: dict[str, Mapping[bytes, bytes]] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)

    def registry(self, name: str) -> dict[str, float]:
        """The ring, the throttled users, or all users, with their scores."""
        return self.members.get(name, {})


def check_invariants(commands: Commands) -> Steps[list[Violation]]:
    found: dict[Violation, None] = {}
    for look in range(LOOKS):
        snapshot = yield from take_snapshot(commands)
        seen = dict.fromkeys(violations(snapshot, str(commands.keys)))
        found = seen if look == 0 else {violation: None for violation in found if violation in seen}
        if not found:
            return []
    return list(found)


def take_snapshot(commands: Commands) -> Steps[Snapshot]:
    prefix = str(commands.keys)
    keys: set[str] = set()
    cursor: Any = 0
    pattern = "".join(f"[{char}]" if char in "*?[]" else char for char in prefix).replace("\\", "\\\\") + "*"
    while True:
        (reply,) = yield Read([("SCAN", cursor, "MATCH", pattern, "COUNT", 1000)])
        cursor = reply[0]
        keys.update(key.decode("utf-8", "surrogateescape")[len(prefix) :] for key in reply[1])
        if int(cursor) == 0:
            break
    snapshot = Snapshot()
    ordered = sorted(keys)
    for first in range(0, len(ordered), 500):
        yield from _read(commands, snapshot, ordered[first : first + 500])
    return snapshot


def _read(commands: Commands, snapshot: Snapshot, names: list[str]) -> Steps[None]:
    prefix = str(commands.keys)
    wanted = [(name, *place) for name in names if (place := _place(snapshot, name))]
    if wanted:
        reply = yield Read([_COMMANDS[kind](prefix + name) for name, kind, _, _ in wanted])
        for (_, kind, into, at), value in zip(wanted, reply, strict=True):
            into[at] = _SHAPES[kind](value)


_COMMANDS: dict[str, Callable[[str], tuple[Any, ...]]] = {
    "hash": lambda key: ("HGETALL", key),
    "zset": lambda key: ("ZRANGE", key, 0, -1, "WITHSCORES"),
    "list": lambda key: ("LRANGE", key, 0, -1),
    "set": lambda key: ("SMEMBERS", key),
}
_SHAPES: dict[str, Callable[[Any], Any]] = {
    "hash": lambda reply: reply,
    "zset": lambda reply: dict(_scores(reply)),
    "list": lambda reply: [_name(item) for item in reply],
    "set": lambda reply: {_name(item) for item in reply},
}
_OWNERLESS = ("stats", "wake", "workers", "worker", "revoked", "reply", "unique")
"""Kinds of keys that belong to the shard or end by themselves."""


def _place(snapshot: Snapshot, name: str) -> tuple[str, dict[str, Any], str] | None:
    """How to read a key and where its value goes; None for a key whose name is all that matters."""
    kind, _, rest = name.partition(":")
    if name.startswith("queue:user:"):
        user, _, lane = rest.removeprefix("user:").rpartition(":")
        return ("zset", snapshot.normal, user) if lane == "normal" else ("list", snapshot.critical, user)
    if name in ("ring", "throttled", "users"):
        return "zset", snapshot.members, name
    places: dict[str, tuple[str, dict[str, Any]]] = {
        "task": ("hash", snapshot.tasks),
        "user": ("hash", snapshot.users),
        "state": ("zset", snapshot.states),
        "leases": ("set", snapshot.leases),
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


def _name(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


def _scores(reply: list[Any]) -> Iterator[tuple[str, float]]:
    if reply and isinstance(reply[0], (list, tuple)):
        for member, score in reply:
            yield _name(member), float(score)
    else:
        for index in range(0, len(reply), 2):
            yield _name(reply[index]), float(reply[index + 1])


def violations(snapshot: Snapshot, prefix: str) -> Iterator[Violation]:
    """Every way in which a snapshot breaks the invariants."""
    yield from _one_state_each(snapshot, prefix)
    yield from _queues_and_leases(snapshot, prefix)
    yield from _users(snapshot, prefix)
    yield from _counters(snapshot, prefix)
    yield from _owners(snapshot, prefix)


def _one_state_each(snapshot: Snapshot, prefix: str) -> Iterator[Violation]:
    at: dict[str, list[str]] = {}
    for state, members in snapshot.states.items():
        for task_id in members:
            at.setdefault(task_id, []).append(state)
    known = {state.value for state in TaskState}
    for task_id, record in snapshot.tasks.items():
        state = _name(record.get(b"state", b""))
        if state not in known:
            yield Violation("one state", f"{prefix}task:{task_id}", f"its state is {state!r}")
        elif at.get(task_id, []) != [state]:
            registries = ", ".join(sorted(at.get(task_id, []))) or "none"
            yield Violation("one state", f"{prefix}task:{task_id}", f"state {state}, in the registry of: {registries}")
        if task_id not in snapshot.payloads:
            yield Violation("payload kept", f"{prefix}payload:{task_id}", "missing")
    for task_id in at.keys() - snapshot.tasks.keys():
        yield Violation("one state", f"{prefix}state:{at[task_id][0]}", f"member {task_id!r} has no task")


def _queues_and_leases(snapshot: Snapshot, prefix: str) -> Iterator[Violation]:
    places: Counter[tuple[str, str]] = Counter()
    for user, members in snapshot.normal.items():
        places.update((task_id, user) for task_id in members)
    for user, ids in snapshot.critical.items():
        places.update((task_id, user) for task_id in ids)
    queued = set()
    for task_id, record in snapshot.tasks.items():
        if record.get(b"state") == b"queued":
            queued.add((task_id, _name(record.get(b"user", b""))))
    for task_id, user in queued - places.keys():
        yield Violation("queued once", f"{prefix}task:{task_id}", f"queued, but not in a queue of user {user!r}")
    for (task_id, user), times in places.items():
        if (task_id, user) not in queued or times > 1:
            detail = f"{task_id!r} is in it {times} times, and its task is not queued there once"
            yield Violation("queued once", f"{prefix}queue:user:{user}", detail)
    held = {(task_id, worker) for worker, ids in snapshot.leases.items() for task_id in ids}
    started = {
        (task_id, _name(record.get(b"worker", b"")))
        for task_id, record in snapshot.tasks.items()
        if record.get(b"state") == b"started"
    }
    for task_id, worker in started ^ held:
        where = (
            "started but not among its worker's leases" if (task_id, worker) in started else "leased but not started"
        )
        yield Violation("one lease", f"{prefix}leases:{worker}", f"{task_id!r} is {where}")


def _users(snapshot: Snapshot, prefix: str) -> Iterator[Violation]:
    waiting: dict[str, Counter[str]] = {}
    for record in snapshot.tasks.values():
        state, user = _name(record.get(b"state", b"")), _name(record.get(b"user", b""))
        field_name = {"scheduled": "sched", "deferred": "deferred", "started": "run"}.get(state)
        if state == "queued":
            field_name = "ready:" + _name(record.get(b"priority", b""))
        if field_name:
            waiting.setdefault(user, Counter())[field_name] += 1
    counted = ("sched", "deferred", "run", *(f"ready:{priority}" for priority in range(1, 7)))
    for user in snapshot.users.keys() | waiting.keys() | snapshot.registry("ring").keys():
        record = snapshot.users.get(user, {})
        real = waiting.get(user, Counter())
        key = f"{prefix}user:{user}"
        for field_name in counted:
            says = int(float(record.get(field_name.encode(), 0)))
            if says != real[field_name]:
                yield Violation("user counts", key, f"{field_name} is {says}, there are {real[field_name]}")
        ready = sum(number for name, number in real.items() if name.startswith("ready:"))
        cap = record.get(b"cap")
        capped = cap is not None and real["run"] >= float(cap)
        servable = ready > 0 and b"paused" not in record and b"held" not in record and not capped
        if servable != (user in snapshot.registry("ring")):
            word = "can be served but is not in the ring" if servable else "is in the ring but can't be served"
            yield Violation("ring", key, word)
        if (b"held" in record) != (user in snapshot.registry("throttled")):
            yield Violation("throttled", key, "held by its rate limit and the registry of held users disagree")
        if user in snapshot.users and user not in snapshot.registry("users"):
            yield Violation("users", key, "has a record and is not among the users")


def _counters(snapshot: Snapshot, prefix: str) -> Iterator[Violation]:
    depth: Counter[bytes] = Counter()
    for record in snapshot.tasks.values():
        if record.get(b"state") == b"queued":
            depth[b"depth:" + record.get(b"priority", b"")] += 1
    for priority in range(1, 7):
        name = f"depth:{priority}"
        says = int(float(snapshot.counters.get("stats", {}).get(name.encode(), 0)))
        if says != depth[name.encode()]:
            yield Violation("counters", f"{prefix}stats", f"{name} is {says}, there are {depth[name.encode()]}")


def _owners(snapshot: Snapshot, prefix: str) -> Iterator[Violation]:
    for kind, ids in (("payload", snapshot.payloads), ("history", snapshot.histories)):
        for task_id in ids - snapshot.tasks.keys():
            yield Violation("owner", f"{prefix}{kind}:{task_id}", "its task is gone")
    for user in snapshot.registry("users").keys() - snapshot.users.keys():
        yield Violation("owner", f"{prefix}users", f"member {user!r} has no record")
    for name in snapshot.others:
        yield Violation("owner", prefix + name, "nobody's key")
