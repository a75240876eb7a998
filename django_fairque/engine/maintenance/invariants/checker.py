"""The checker: what a queue holds, compared with the invariants of the design.

It reads every key of the queue (SCAN), so it is for operators and tests, not for a request. On a live server two
looks may straddle a change; a violation is reported only if it is seen in three looks in a row.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from django_fairque.engine.maintenance.invariants.dependency_rules import check_dependencies, check_runs
from django_fairque.engine.maintenance.invariants.ring_rules import (
    RUNNING_TASK_SUMS,
    check_organizations,
    check_rings,
    check_weights,
    differs,
)
from django_fairque.engine.maintenance.invariants.snapshot import Snapshot, Violation, name_of, take_snapshot
from django_fairque.engine.model import task as task_hash
from django_fairque.engine.model.durations import number
from django_fairque.engine.model.errors import TaskSerializationError
from django_fairque.engine.model.priority import SCORE_PER_PRIORITY
from django_fairque.engine.model.records import FailureType, TaskState

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from django_fairque.engine.scripting.commands import Commands
    from django_fairque.engine.scripting.operations import Operation

CONFIRMING_READS = 3
WRONG_TYPE_INVARIANT = "type"
"""The invariant that keys have the types of lua/README.md; a person must remove what has not, before anything is fixed."""
SCORE_EPOCH_MICROSECONDS = 1735689600000000
"""From when moments are counted there, in microseconds."""


def check_invariants(commands: Commands) -> Operation[list[Violation]]:
    found: dict[Violation, None] = {}
    for look in range(CONFIRMING_READS):
        snapshot = yield from take_snapshot(commands)
        seen = dict.fromkeys(violations(snapshot, str(commands.keys)))
        found = seen if look == 0 else {violation: None for violation in found if violation in seen}
        if not found:
            return []
    return list(found)


def violations(snapshot: Snapshot, prefix: str) -> Iterator[Violation]:
    """Every way in which a snapshot breaks the invariants."""
    for name, (found, expected) in snapshot.squatters.items():
        yield Violation(
            WRONG_TYPE_INVARIANT, prefix + name, f"is a {found}, must be a {expected}: not written by the queue"
        )
    yield from _one_state_each(snapshot, prefix)
    yield from _queues_and_leases(snapshot, prefix)
    yield from _lanes(snapshot, prefix)
    yield from _scheduled(snapshot, prefix)
    waiting = _waiting(snapshot)
    yield from _users(snapshot, prefix, waiting)
    yield from check_rings(snapshot, prefix, waiting)
    yield from check_organizations(snapshot, prefix, waiting)
    yield from check_weights(snapshot, prefix, waiting)
    yield from _held(snapshot, prefix)
    yield from _counters(snapshot, prefix)
    yield from _dead_letters(snapshot, prefix)
    yield from check_dependencies(snapshot, prefix)
    yield from check_runs(snapshot, prefix)
    yield from _owners(snapshot, prefix)


def _one_state_each(snapshot: Snapshot, prefix: str) -> Iterator[Violation]:
    at: dict[str, list[str]] = {}
    for state, members in snapshot.states.items():
        for task_id in members:
            at.setdefault(task_id, []).append(state)
    known = {state.value for state in TaskState}
    for task_id, record in snapshot.tasks.items():
        state = name_of(record.get(b"state", b""))
        if state not in known:
            yield Violation("one state", f"{prefix}task:{task_id}", f"its state is {state!r}")
        elif at.get(task_id, []) != [state]:
            registries = ", ".join(sorted(at.get(task_id, []))) or "none"
            detail = f"state {state}, in the registry of: {registries}"
            yield Violation("one state", f"{prefix}task:{task_id}", detail, ("task", task_id, ""))
        if state in known and (damage := _damage_of(task_id, record)) is not None:
            yield Violation("record", f"{prefix}task:{task_id}", damage)
        if task_id not in snapshot.payloads:
            yield Violation("payload kept", f"{prefix}payload:{task_id}", "missing", ("task", task_id, ""))
    for task_id in at.keys() - snapshot.tasks.keys():
        state = at[task_id][0]
        yield Violation(
            "one state", f"{prefix}state:{state}", f"member {task_id!r} has no task", ("index", state, task_id)
        )


def _damage_of(task_id: str, record: Mapping[bytes, bytes]) -> str | None:
    try:
        task_hash.decode_task({"id": b"", **{name_of(field): value for field, value in record.items()}})
    except TaskSerializationError as error:
        return f"{error}; listings leave {task_id!r} out"
    return None


def _queues_and_leases(snapshot: Snapshot, prefix: str) -> Iterator[Violation]:
    places: Counter[tuple[str, str]] = Counter()
    for user, members in snapshot.normal.items():
        places.update((task_id, user) for task_id in members)
    for user, ids in snapshot.critical.items():
        places.update((task_id, user) for task_id in ids)
    queued = set()
    for task_id, record in snapshot.tasks.items():
        if record.get(b"state") == b"queued":
            queued.add((task_id, name_of(record.get(b"user", b""))))
    for task_id, user in queued - places.keys():
        yield Violation(
            "queued once",
            f"{prefix}task:{task_id}",
            f"queued, but not in a queue of user {user!r}",
            ("task", task_id, ""),
        )
    for (task_id, user), times in places.items():
        if (task_id, user) not in queued or times > 1:
            detail = f"{task_id!r} is in it {times} times, and its task is not queued there once"
            yield Violation("queued once", f"{prefix}queue:user:{user}", detail, ("queue", user, task_id))
    held = {(task_id, worker) for worker, ids in snapshot.leases.items() for task_id in ids}
    started = {
        (task_id, name_of(record.get(b"worker", b"")))
        for task_id, record in snapshot.tasks.items()
        if record.get(b"state") == b"started"
    }
    for task_id, worker in started ^ held:
        where = (
            "started but not among its worker's leases" if (task_id, worker) in started else "leased but not started"
        )
        yield Violation("one lease", f"{prefix}leases:{worker}", f"{task_id!r} is {where}", ("lease", worker, task_id))


def _lanes(snapshot: Snapshot, prefix: str) -> Iterator[Violation]:
    """A queued task stands where its priority is looked for; elsewhere nobody would ever find it."""
    places = [
        (task_id, user, f"{score // SCORE_PER_PRIORITY:.0f}")
        for user, members in snapshot.normal.items()
        for task_id, score in members.items()
    ]
    places += [(task_id, user, "6") for user, ids in snapshot.critical.items() for task_id in ids]
    for task_id, user, place in places:
        record = snapshot.tasks.get(task_id, {})
        priority = name_of(record.get(b"priority", b""))
        is_here = record.get(b"state") == b"queued" and name_of(record.get(b"user", b"")) == user
        if is_here and place != priority:
            detail = f"{task_id!r} has priority {priority}, its place there is of {place}"
            yield Violation("queued once", f"{prefix}queue:user:{user}", detail, ("queue", user, task_id))


def _scheduled(snapshot: Snapshot, prefix: str) -> Iterator[Violation]:
    """A scheduled task stands among its user's at its moment, and its user among those that are looked at in time."""
    moments = snapshot.states.get(TaskState.SCHEDULED.value, {})
    real = {
        (task_id, name_of(record.get(b"user", b"")))
        for task_id, record in snapshot.tasks.items()
        if record.get(b"state") == b"scheduled"
    }
    found = {(task_id, user) for user, members in snapshot.scheduled.items() for task_id in members}
    for task_id, user in found - real:
        key, detail = (
            f"{prefix}queue:user:{user}:scheduled",
            f"{task_id!r} is in it and not a scheduled task of the user",
        )
        yield Violation("scheduled once", key, detail, ("queue", user, task_id))
    clock = number(snapshot.counters.get("stats", {}).get(b"clock"))
    for task_id, user in real:
        moment = snapshot.scheduled.get(user, {}).get(task_id)
        looked_at = snapshot.registry("due").get(user)
        repair = ("task", task_id, "")
        if moment is None or moment != moments.get(task_id, moment):
            detail = "scheduled, but not among its user's scheduled tasks at its moment"
            yield Violation("scheduled once", f"{prefix}task:{task_id}", detail, repair)
        elif looked_at is None or looked_at > max(clock, moment):
            detail = f"scheduled, but its user {user!r} is not looked at in time"
            yield Violation("scheduled once", f"{prefix}due", detail, repair)


def _waiting(snapshot: Snapshot) -> dict[str, Counter[str]]:
    """What each user has, by the field of its record that counts it."""
    waiting: dict[str, Counter[str]] = {}
    for record in snapshot.tasks.values():
        state, user = name_of(record.get(b"state", b"")), name_of(record.get(b"user", b""))
        field_name = {"scheduled": "sched", "deferred": "deferred", "started": "run"}.get(state)
        if state == "queued":
            field_name = "ready:" + name_of(record.get(b"priority", b""))
        if field_name:
            counter = waiting.setdefault(user, Counter())
            counter[field_name] += 1
            counter["bytes"] += int(float(record.get(b"size", 0)))
            if state == "started":
                counter["expected"] += int(number(record.get(b"cost")))
                is_companion = record.get(b"companion") == b"1"
                counter["companions"] += is_companion
                counter["start"] += (
                    0 if is_companion else int(number(record.get(b"started"))) - SCORE_EPOCH_MICROSECONDS
                )
    return waiting


def _users(snapshot: Snapshot, prefix: str, waiting: Mapping[str, Counter[str]]) -> Iterator[Violation]:
    counted = (
        "sched",
        "deferred",
        "run",
        "bytes",
        *RUNNING_TASK_SUMS,
        *(f"ready:{priority}" for priority in range(1, 7)),
    )
    for user in snapshot.users.keys() | waiting.keys():
        record = snapshot.users.get(user, {})
        real = waiting.get(user, Counter())
        key = f"{prefix}user:{user}"
        for field_name in counted:
            recorded = int(number(record.get(field_name.encode())))
            if differs(field_name, recorded, real[field_name]):
                detail = f"{field_name} is {recorded}, there are {real[field_name]}"
                yield Violation(
                    "user counts", key, detail, ("user", user, f"{field_name}:{real[field_name] - recorded}")
                )
        if (b"held" in record) != (user in snapshot.registry("throttled")):
            word = "held by its rate limit and the registry of held users disagree"
            yield Violation("throttled", key, word, ("place", user, ""))
        if user in snapshot.users and user not in snapshot.registry("users"):
            yield Violation("users", key, "has a record and is not among the users", ("place", user, ""))


def _held(snapshot: Snapshot, prefix: str) -> Iterator[Violation]:
    """A rate holds nobody for longer than one task's time and, after a change, its debt: else a clock was wrong."""
    clock = number(snapshot.counters.get("stats", {}).get(b"clock"))
    for user, until in snapshot.registry("throttled").items():
        record = snapshot.users.get(user, {})
        gap = record.get(b"gap")
        if gap is not None and until > clock + number(gap) + number(record.get(b"debt")):
            word = "is held for longer than its rate asks for"
            yield Violation("throttled", f"{prefix}user:{user}", word, ("place", user, ""))


def _counters(snapshot: Snapshot, prefix: str) -> Iterator[Violation]:
    depth: Counter[bytes] = Counter()
    for record in snapshot.tasks.values():
        if record.get(b"state") == b"queued":
            depth[b"depth:" + record.get(b"priority", b"")] += 1
    for priority in range(1, 7):
        name = f"depth:{priority}"
        recorded = int(number(snapshot.counters.get("stats", {}).get(name.encode())))
        if recorded != depth[name.encode()]:
            real = depth[name.encode()]
            repair = ("stat", name, str(real - recorded))
            yield Violation("counters", f"{prefix}stats", f"{name} is {recorded}, there are {real}", repair)


def _dead_letters(snapshot: Snapshot, prefix: str) -> Iterator[Violation]:
    real: Counter[str] = Counter()
    for record in snapshot.tasks.values():
        if record.get(b"state") == b"failed":
            real[name_of(record.get(b"failure", b"failed"))] += 1
    for kind in FailureType:
        name = f"lying:{kind.value}"
        recorded = int(number(snapshot.counters.get("stats", {}).get(name.encode())))
        if recorded != real[kind.value]:
            detail = f"{name} is {recorded}, there are {real[kind.value]}"
            yield Violation("counters", f"{prefix}stats", detail, ("stat", name, str(real[kind.value] - recorded)))


def _owners(snapshot: Snapshot, prefix: str) -> Iterator[Violation]:
    for kind, ids in (("payload", snapshot.payloads), ("history", snapshot.histories)):
        for task_id in ids - snapshot.tasks.keys():
            yield Violation("owner", f"{prefix}{kind}:{task_id}", "its task is gone", ("key", f"{kind}:{task_id}", ""))
    for user in snapshot.registry("users").keys() - snapshot.users.keys():
        yield Violation("owner", f"{prefix}users", f"member {user!r} has no record", ("place", user, ""))
    for name in snapshot.others:
        yield Violation("owner", prefix + name, "nobody's key")
