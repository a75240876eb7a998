"""The checker, which compares the keys of a queue with the invariants of the design.

The check reads every key of the queue (SCAN), so it is for operators and tests, not for web requests. On a live server the
queue can change between two reads, so a violation is reported only if three checks in a row find it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from django_fairque.engine.inspection.pages import PartialList
from django_fairque.engine.maintenance.snapshot import Snapshot, Violation, decode_name, encode_name, take_snapshot
from django_fairque.engine.model import task as task_hash
from django_fairque.engine.model.durations import number
from django_fairque.engine.model.errors import TaskSerializationError
from django_fairque.engine.model.lanes import CLASS_NAMES, LANES, Lane, class_of, read_lane
from django_fairque.engine.model.limits import decode_limits, limit_id_of
from django_fairque.engine.model.pauses import has_pause_end
from django_fairque.engine.model.priority import SCORE_PER_PRIORITY
from django_fairque.engine.model.records import FailureType, TaskState
from django_fairque.engine.scripting.commands import LIMIT_PREFIX, NEVER_MICROSECONDS, ORGANIZATION_PREFIX, Commands
from django_fairque.engine.scripting.operations import Operation

if TYPE_CHECKING:
    from django_fairque.engine.scripting.commands import Commands
    from django_fairque.engine.scripting.operations import Operation
    from django_fairque.engine.sharding.shards import Shards


CONFIRMING_READS = 3
WRONG_TYPE_INVARIANT = "type"
"""The invariant that keys have the types of lua/README.md. An operator must remove keys of other types before anything
can be repaired.
"""
SCORE_EPOCH_MICROSECONDS = 1735689600000000
"""The moment from which sums of moments are counted, in microseconds since the Unix epoch."""
ORGANIZATION_MARK = decode_name(ORGANIZATION_PREFIX)
LIMIT_MARK = decode_name(LIMIT_PREFIX)
LIMIT_INDEXES = ("limited:urgent", "limited:normal", "limited:bulk")
LIMIT_COUNTS = ("running", "waiting", "admitted", "admitted:6", "admitted:7")
RUNNING_TASK_SUMS = ("expected", "start", "companions")
"""Sums over running tasks: their charges and the moments at which they were handed out (both in microseconds), and the number of
companions: tasks that a batch started together with another task.
"""
WEIGHT_UNITS = 1_000_000
"""The unit of sums of weights: millionths, as in lua/lib/ring.lua."""
ROUNDING_TOLERANCE_MICROSECONDS = 1_000_000
"""The tolerated rounding error of the sum of the moments at which a user's running tasks started. From about 150 running tasks
on, the sum exceeds 2^53, so a double no longer holds it exactly.
"""


def check_invariants(shards: Shards) -> Operation[PartialList[Violation]]:
    found: list[Violation] = []
    for shard in shards:
        found += yield from check_shard(shard)
    return PartialList(found, shards.missing)


def check_shard(commands: Commands) -> Operation[list[Violation]]:
    found: dict[Violation, None] = {}
    for look in range(CONFIRMING_READS):
        snapshot = yield from take_snapshot(commands)
        seen = dict.fromkeys(violations(snapshot))
        found = seen if look == 0 else {violation: None for violation in found if violation in seen}
        if not found:
            return []
    return list(found)


def violations(snapshot: Snapshot) -> Iterator[Violation]:
    """Yield all violations of the invariants in a snapshot."""
    for name, (found, expected) in snapshot.squatters.items():
        detail = f"is a {found}, must be a {expected}: not written by the queue"
        yield snapshot.violation(WRONG_TYPE_INVARIANT, name, detail)
    for check in (_one_state_each, _queues_and_leases, _priorities, _check_scheduled_tasks):
        yield from check(snapshot)
    waiting = _collect_waiting_tasks(snapshot)
    served, urgent, bulk = (_servable(snapshot, waiting, lane) for lane in ("normal", "urgent", "bulk"))
    startable = served | urgent | bulk
    sums = _sums(snapshot, waiting, served)
    yield from _users(snapshot, waiting)
    yield from _rings(snapshot, served, startable)
    yield from _lanes(snapshot, "urgent", urgent)
    yield from _lanes(snapshot, "bulk", bulk)
    in_ring = {user for user in served if snapshot.get_organization(user) is None}
    yield from _organizations(snapshot, sums, len((startable - in_ring) & snapshot.users.keys()))
    yield from _newcomers(snapshot, served, sums)
    yield from _weights(snapshot, waiting, startable, sums)
    yield from _check_guaranteed_shares(snapshot, sums)
    yield from check_limits(snapshot)
    for check in (_check_held_users, _counters, _dependencies, _runs, _results, _owners):
        yield from check(snapshot)


def _wrong_stats(snapshot: Snapshot, real: Mapping[str, int], fix: str, must: str) -> Iterator[Violation]:
    for name, count in real.items():
        recorded = int(number(snapshot.stats.get(name.encode())))
        if recorded != count:
            detail = f"{name} is {recorded}, {must} {count}"
            yield snapshot.violation("counters", "stats", detail, fix, name, str(count - recorded))


def _wrong_counts(
    snapshot: Snapshot, invariant: str, kind: str, name: str, record: Mapping[bytes, bytes], real: Mapping[str, int]
) -> Iterator[Violation]:
    for counter, count in real.items():
        recorded = int(number(record.get(counter.encode())))
        if abs(recorded - count) > (ROUNDING_TOLERANCE_MICROSECONDS if counter == "start" else 0):
            detail = f"{counter} is {recorded}, there are {count}"
            yield snapshot.violation(invariant, f"{kind}:{name}", detail, kind, name, f"{counter}:{count - recorded}")


def _one_state_each(snapshot: Snapshot) -> Iterator[Violation]:
    at: dict[str, list[str]] = {}
    for state, members in snapshot.states.items():
        for task_id in members:
            at.setdefault(task_id, []).append(state)
    known = {state.value for state in TaskState}
    for task_id, record in snapshot.tasks.items():
        key, state = f"task:{task_id}", decode_name(record.get(b"state", b""))
        if state not in known:
            yield snapshot.violation("one state", key, f"its state is {state!r}")
        elif at.get(task_id, []) != [state]:
            registries = ", ".join(sorted(at.get(task_id, []))) or "none"
            detail = f"state {state}, in the registry of: {registries}"
            yield snapshot.violation("one state", key, detail, "task", task_id, "")
        has_payload = task_id in snapshot.heads
        # The fields that a record lacks are in the head of the payload, and are lost if the payload is gone.
        can_be_read = state in known and (has_payload or b"user" in record)
        if can_be_read and (damage := _describe_damage(task_id, record)) is not None:
            yield snapshot.violation("record", key, damage)
        if not has_payload:
            yield snapshot.violation("payload kept", f"payload:{task_id}", "missing", "task", task_id, "")
    for task_id in at.keys() - snapshot.tasks.keys():
        state = at[task_id][0]
        detail = f"member {task_id!r} has no task"
        yield snapshot.violation("one state", f"state:{state}", detail, "index", state, task_id)


def _describe_damage(task_id: str, record: Mapping[bytes, bytes]) -> str | None:
    try:
        task_hash.decode_task({"id": b"", **{decode_name(field): value for field, value in record.items()}})
    except TaskSerializationError as error:
        return f"{error}; listings leave {task_id!r} out"
    return None


def _queues_and_leases(snapshot: Snapshot) -> Iterator[Violation]:
    places = Counter((task_id, user) for user, ids in snapshot.critical.items() for task_id in ids)
    places.update((task_id, user) for user, members in snapshot.normal.items() for task_id in members)
    queued = {
        (task_id, user) for task_id, user in snapshot.find_tasks("queued", "user") if not snapshot.waits_at(task_id)
    }
    for task_id, user in queued - places.keys():
        detail = f"queued, but not in a queue of user {user!r}"
        yield snapshot.violation("queued once", f"task:{task_id}", detail, "task", task_id, "")
    for (task_id, user), times in places.items():
        if (task_id, user) not in queued or times > 1:
            detail = f"{task_id!r} is in it {times} times, and its task is not queued there once"
            yield snapshot.violation("queued once", f"queue:user:{user}", detail, "queue", user, task_id)
    held = {(task_id, worker) for worker, ids in snapshot.leases.items() for task_id in ids}
    started = snapshot.find_tasks("started", "worker")
    for task_id, worker in started ^ held:
        is_started = (task_id, worker) in started
        where = "started but not among its worker's leases" if is_started else "leased but not started"
        yield snapshot.violation("one lease", f"leases:{worker}", f"{task_id!r} is {where}", "lease", worker, task_id)


def _priorities(snapshot: Snapshot) -> Iterator[Violation]:
    """Check that each queued task is in the queue of its priority, with the right score. Otherwise no worker would find
    it.
    """
    places = [
        (task_id, user, f"{score // SCORE_PER_PRIORITY:.0f}")
        for user, members in snapshot.normal.items()
        for task_id, score in members.items()
    ]
    places += [(task_id, user, "6") for user, ids in snapshot.critical.items() for task_id in ids]
    for task_id, user, place in places:
        record = snapshot.tasks.get(task_id, {})
        priority = decode_name(record.get(b"priority", b""))
        is_here = record.get(b"state") == b"queued" and decode_name(record.get(b"user", b"")) == user
        if is_here and place != priority:
            detail = f"{task_id!r} has priority {priority}, its place there is of {place}"
            yield snapshot.violation("queued once", f"queue:user:{user}", detail, "queue", user, task_id)


def _check_scheduled_tasks(snapshot: Snapshot) -> Iterator[Violation]:
    """Check that each scheduled task is in its user's list at its moment, and that a sweep will check its user in time."""
    moments = snapshot.states.get(TaskState.SCHEDULED.value, {})
    real = snapshot.find_tasks("scheduled", "user")
    found = {(task_id, user) for user, members in snapshot.scheduled.items() for task_id in members}
    for task_id, user in found - real:
        detail = f"{task_id!r} is in it and not a scheduled task of the user"
        yield snapshot.violation("scheduled once", f"queue:user:{user}:scheduled", detail, "queue", user, task_id)
    clock = number(snapshot.stats.get(b"clock"))
    for task_id, user in real:
        moment = snapshot.scheduled.get(user, {}).get(task_id)
        looked_at = snapshot.registry("due").get(user)
        if moment is None or moment != moments.get(task_id, moment):
            detail = "scheduled, but not among its user's scheduled tasks at its moment"
            yield snapshot.violation("scheduled once", f"task:{task_id}", detail, "task", task_id, "")
        elif looked_at is None or looked_at > max(clock, moment):
            detail = f"scheduled, but its user {user!r} is not looked at in time"
            yield snapshot.violation("scheduled once", "due", detail, "task", task_id, "")


Waiting = dict[str, Counter[str]]
"""The real value of each counter of each user, computed from the tasks."""


def _collect_waiting_tasks(snapshot: Snapshot) -> Waiting:
    waiting: Waiting = {}
    for record in snapshot.tasks.values():
        state, user = decode_name(record.get(b"state", b"")), decode_name(record.get(b"user", b""))
        field_name = {"scheduled": "sched", "deferred": "deferred", "started": "run"}.get(state)
        if state == "queued":
            is_limited = bool(record.get(b"waits_at"))
            field_name = "limited" if is_limited else "ready:" + decode_name(record.get(b"priority", b""))
        if state == "failed" or b"result_size" in record:
            counter = waiting.setdefault(user, Counter())
            counter["dead"] += state == "failed"
            counter["result_bytes"] += int(number(record.get(b"result_size")))
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


def _users(snapshot: Snapshot, waiting: Waiting) -> Iterator[Violation]:
    priorities = (f"ready:{number}" for number in CLASS_NAMES)
    counted = ("sched", "deferred", "limited", "run", "bytes", "dead", "result_bytes", *RUNNING_TASK_SUMS, *priorities)
    for user in snapshot.users.keys() | waiting.keys():
        record, has = snapshot.users.get(user, {}), waiting.get(user, Counter())
        key, repair = f"user:{user}", ("place", user, "")
        yield from _wrong_counts(snapshot, "user counts", "user", user, record, {name: has[name] for name in counted})
        is_awaited = b"held" in record or has_pause_end(record)
        if is_awaited != (user in snapshot.registry("throttled")):
            detail = "held by its rate limit, or by a pause with an end, and the registry of held users disagree"
            yield snapshot.violation("throttled", key, detail, *repair)
        if user in snapshot.users and user not in snapshot.registry("users"):
            yield snapshot.violation("users", key, "has a record and is not among the users", *repair)


def _is_served(record: Mapping[bytes, bytes], ready: int, running: int, beyond: int = 0) -> bool:
    """Apply the rule of ``ring.can_start`` in lua/lib/ring.lua; ``beyond``: running tasks allowed beyond the limit."""
    cap = record.get(b"cap")
    capped = cap is not None and running >= number(cap) + beyond
    return ready > 0 and b"paused" not in record and b"held" not in record and not capped


def _servable(snapshot: Snapshot, waiting: Waiting, lane: Lane) -> set[str]:
    """Return the users with a task of this lane that can be started, regardless of the limits of their organizations."""
    found = set()
    for user, real in waiting.items():
        ready = sum(real[f"ready:{number}"] for number in CLASS_NAMES if read_lane(str(number)) == lane)
        if _is_served(snapshot.users.get(user, {}), ready, real["run"], lane == "urgent"):
            found.add(user)
    return found


def _lanes(snapshot: Snapshot, lane: Lane, served: set[str]) -> Iterator[Violation]:
    """Check that lane urgent or bulk has exactly the users and organizations with a task of the lane that can be
    started."""
    registry, field_name = snapshot.registry(lane), f"ready:{class_of(lane, 0)}"
    users = {entry for entry in registry if not entry.startswith(ORGANIZATION_MARK)}
    ready = Counter[str]()
    for user in snapshot.users.keys() | served | users:
        organization, is_served = snapshot.get_organization(user), user in served
        there = users if organization is None else snapshot.lanes[lane].get(organization, {})
        if organization is not None:
            ready[organization] += is_served
        if is_served != (user in there) or (organization is not None and user in users):
            detail = f"lane {lane} does not have exactly the users with a task that can be started"
            yield snapshot.violation("lanes", f"user:{user}", detail, "place", user, "")
    for organization, members in snapshot.lanes[lane].items():
        for user in members:
            if snapshot.get_organization(user) != organization:
                detail = f"{user!r} is in it and does not belong to the organization"
                yield snapshot.violation("lanes", f"{lane}:{organization}", detail, "member", organization, user)
    for organization, record in snapshot.organizations.items():
        real = {field_name: ready[organization]}
        yield from _wrong_counts(snapshot, "organization counts", "group", organization, record, real)
        is_served = _is_served(record, ready[organization], int(number(record.get(b"run"))))
        if is_served != (ORGANIZATION_MARK + organization in registry):
            detail = f"lane {lane} does not have exactly the organizations with a task that can be started"
            yield snapshot.violation("lanes", f"group:{organization}", detail, "standing", organization, "")


def _in_ring(snapshot: Snapshot, key: str, *fix: str, is_served: bool, is_there: bool) -> Iterator[Violation]:
    if is_served != is_there:
        detail = "can be served but is not in the ring" if is_served else "is in the ring but can't be served"
        yield snapshot.violation("ring", key, detail, *fix)


def _rings(snapshot: Snapshot, served: set[str], startable: set[str]) -> Iterator[Violation]:
    """Check that users without an organization are only in the shard's ring, and members only in their organization's ring."""
    ring = {entry for entry in snapshot.registry("ring") if not entry.startswith(ORGANIZATION_MARK)}
    grouped = snapshot.registry("grouped")
    for user in snapshot.users.keys() | served | ring | grouped.keys():
        organization, is_served = snapshot.get_organization(user), user in served
        there = ring if organization is None else snapshot.rings.get(organization, {})
        key, repair = f"user:{user}", ("place", user, "")
        yield from _in_ring(snapshot, key, *repair, is_served=is_served, is_there=user in there)
        if organization is not None and user in ring:
            yield snapshot.violation("ring", key, "belongs to an organization and is in the shard's ring", *repair)
        if (user in startable and organization is not None) != (user in grouped):
            detail = "the registry of members who can be served and its organization's ring disagree"
            yield snapshot.violation("ring", key, detail, *repair)
    for organization, members in snapshot.rings.items():
        for user in members:
            if snapshot.get_organization(user) != organization:
                detail = f"{user!r} is in it and does not belong to the organization"
                yield snapshot.violation("ring", f"ring:{organization}", detail, "member", organization, user)


def _sums(snapshot: Snapshot, waiting: Waiting, served: set[str]) -> dict[str, Counter[str]]:
    """Compute the counters of each organization: its members, members who can be served (``ready``), and their tasks."""
    found = {organization: Counter[str]() for organization in snapshot.organizations}
    for user in snapshot.users:
        if (organization := snapshot.get_organization(user)) is not None:
            sums, has = found.setdefault(organization, Counter()), waiting.get(user, Counter())
            sums.update(
                members=1, ready=int(user in served), **{name: has[name] for name in ("run", *RUNNING_TASK_SUMS)}
            )
    return found


def _organizations(snapshot: Snapshot, sums: Mapping[str, Counter[str]], behind: int) -> Iterator[Violation]:
    """Check that each organization has members or settings and right counters, and is in the shard's ring if a member
    can be served.

    ``behind`` is the number of users that can start a task and have no entry in the shard's ring.
    """
    ring, known, held = (snapshot.registry(name) for name in ("ring", "groups", "throttled"))
    in_ring = {entry.removeprefix(ORGANIZATION_MARK) for entry in ring if entry.startswith(ORGANIZATION_MARK)}
    awaited = {member.removeprefix(ORGANIZATION_MARK) for member in held if member.startswith(ORGANIZATION_MARK)}
    for organization in sums.keys() | known.keys() | in_ring | awaited:
        record, has = snapshot.organizations.get(organization, {}), sums.get(organization, Counter())
        key, repair = f"group:{organization}", ("standing", organization, "")
        real = {name: has[name] for name in ("members", "ready", "run", *RUNNING_TASK_SUMS)}
        yield from _wrong_counts(snapshot, "organization counts", "group", organization, record, real)
        has_settings = not record.keys().isdisjoint({b"cap", b"paused", b"share"})
        has_settings = has_settings or number(record.get(b"weight"), 1.0) != 1
        if record and not has["members"] and not has_settings:
            detail = "has neither members nor settings"
            yield snapshot.violation("organizations", key, detail, "group", organization, "members:0")
        is_served = _is_served(record, has["ready"], has["run"])
        behind -= is_served
        yield from _in_ring(snapshot, key, *repair, is_served=is_served, is_there=organization in in_ring)
        if has_pause_end(record) != (organization in awaited):
            detail = "its pause with an end and the registry of held users disagree"
            yield snapshot.violation("throttled", key, detail, *repair)
        if bool(record) != (organization in known):
            detail = "its record and the registry of organizations disagree"
            yield snapshot.violation("organizations", key, detail, *repair)
    yield from _wrong_stats(snapshot, {"groups": len(snapshot.organizations), "behind": behind}, "sum", "must be")


def _check_guaranteed_shares(snapshot: Snapshot, sums: Mapping[str, Counter[str]]) -> Iterator[Violation]:
    """Check that the registry has each organization with a guaranteed share, and that such an organization is owed time
    if it has tasks.
    """
    known, waiting = snapshot.registry("guaranteed"), 0
    for organization in snapshot.organizations.keys() | known.keys():
        record, has = snapshot.organizations.get(organization, {}), sums.get(organization, Counter())
        ready = has["ready"] + int(number(record.get(b"ready:7")) + number(record.get(b"ready:0")))
        is_owed, has_share = b"owed_from" in record, b"share" in record
        waiting += is_owed
        is_placed = known.get(organization, NEVER_MICROSECONDS) < NEVER_MICROSECONDS
        if (
            has_share != (organization in known)
            or is_owed != (has_share and _is_served(record, ready, has["run"]))
            or is_owed != is_placed
        ):
            detail = "its guaranteed share and the registry of these disagree, or whether it has tasks that can start"
            yield snapshot.violation("shares", f"group:{organization}", detail, "standing", organization, "")
    yield from _wrong_stats(snapshot, {"guaranteed": waiting}, "sum", "must be")


def _newcomers(snapshot: Snapshot, served: set[str], sums: Mapping[str, Counter[str]]) -> Iterator[Violation]:
    """Check that newcomers are before all other entries of their ring, and that ``others`` counts the entries that are
    no newcomers.
    """
    entries = [
        ("user", user, snapshot.get_organization(user), record, user in served)
        for user, record in snapshot.users.items()
    ]
    for organization, record in snapshot.organizations.items():
        has = sums[organization]
        is_served = _is_served(record, has["ready"], has["run"])
        entries.append(("group", organization, None, record, is_served))
    others = Counter[str | None]()
    for kind, name, ring, record, is_served in entries:
        is_newcomer = number(record.get(b"came")) > 0
        others[ring] += is_served and not is_newcomer
        entry, fix = (name, "place") if kind == "user" else (ORGANIZATION_MARK + name, "standing")
        place = (snapshot.registry("ring") if ring is None else snapshot.rings.get(ring, {})).get(entry)
        if is_served and place is not None and (place < 0) != is_newcomer:
            detail = (
                "is a newcomer and stands among the others" if is_newcomer else "is none and stands among newcomers"
            )
            yield snapshot.violation("newcomers", f"{kind}:{name}", detail, fix, name, "")
    for organization, record in snapshot.organizations.items():
        if difference := others[organization] - int(number(record.get(b"others"))):
            detail = f"the count of members in its ring who are no newcomers is off by {difference}"
            correction = ("group", organization, f"others:{difference}")
            yield snapshot.violation("newcomers", f"group:{organization}", detail, *correction)
    yield from _wrong_stats(snapshot, {"others": others[None]}, "sum", "must be")


def _weights(
    snapshot: Snapshot, waiting: Waiting, startable: set[str], sums: Mapping[str, Counter[str]]
) -> Iterator[Violation]:
    """Check that each ring's ``active`` is the sum of the weights of users and organizations with work.

    The field ``counted`` in each record must be its part of the sum.
    A record without the field was last written by a version that did not count, and is counted with its next change.
    """
    entries = []
    for user, record in snapshot.users.items():
        is_active = user in startable or waiting.get(user, Counter())["run"] > 0
        entries.append(("user", user, snapshot.get_organization(user), record, is_active))
    for organization, record in snapshot.organizations.items():
        has = sums[organization]
        ready = has["ready"] + int(number(record.get(b"ready:7")) + number(record.get(b"ready:0")))
        is_active = _is_served(record, ready, has["run"]) or has["run"] > 0
        entries.append(("group", organization, None, record, is_active))
    active, active_users = Counter[str | None](), 0
    for kind, name, ring, record, is_active in entries:
        if (counted := record.get(b"counted")) is not None:
            recorded = int(float(counted))
            real = math.floor(number(record.get(b"weight"), 1.0) * WEIGHT_UNITS + 0.5) if is_active else 0
            active[ring] += real
            active_users += kind == "user" and real > 0
            if recorded != real:
                detail = f"counts {recorded} millionths of a weight, must count {real}"
                yield snapshot.violation("weights", f"{kind}:{name}", detail, kind, name, f"counted:{real - recorded}")
    for organization, record in snapshot.organizations.items():
        if difference := active[organization] - int(float(record.get(b"active", 0))):
            detail = f"the weights of members with work are off by {difference} millionths"
            fix = ("group", organization, f"active:{difference}")
            yield snapshot.violation("weights", f"group:{organization}", detail, *fix)
    if difference := active[None] - int(float(snapshot.stats.get(b"active", 0))):
        detail = f"the weights of users and organizations with work are off by {difference} millionths"
        yield snapshot.violation("weights", "stats", detail, "sum", "active", str(difference))
    yield from _wrong_stats(snapshot, {"active_users": active_users}, "sum", "must be")


def _check_held_users(snapshot: Snapshot) -> Iterator[Violation]:
    """Check that no rate limit holds a user too long, and that each pause with an end is checked in time.

    A rate limit holds a user at most until the next token. After a change of the rate, the user also waits for the tokens that it
    has used in advance (its debt). A longer time comes from a wrong clock.
    """
    clock = number(snapshot.stats.get(b"clock"))
    for entry, until in snapshot.registry("throttled").items():
        if entry.startswith(LIMIT_MARK):
            continue
        name = entry.removeprefix(ORGANIZATION_MARK)
        kind, fix, records = "user", "place", snapshot.users
        if entry != name:
            kind, fix, records = "group", "standing", snapshot.organizations
        record = records.get(name, {})
        gap = record.get(b"gap")
        if b"held" in record:
            end = until if gap is None else clock + number(gap) + number(record.get(b"debt"))
        else:
            end = number(record.get(b"paused")) if has_pause_end(record) else until
        if until > end:
            detail = "is held for longer than its rate or its pause asks for"
            yield snapshot.violation("throttled", f"{kind}:{name}", detail, fix, name, "")


def _counters(snapshot: Snapshot) -> Iterator[Violation]:
    """Check the counters of ready tasks by priority, and of dead letters by failure type."""
    real = Counter[str]()
    for record in snapshot.tasks.values():
        if record.get(b"state") == b"queued":
            real["depth:" + decode_name(record.get(b"priority", b""))] += 1
        elif record.get(b"state") == b"started":
            lane = read_lane(record.get(b"priority", b"3"))
            real.update(["running"] if lane == "normal" else ["running", f"running:{lane}"])
        elif record.get(b"state") == b"failed":
            real["lying:" + decode_name(record.get(b"failure", b"failed"))] += 1
    names = ["running", "running:urgent", "running:bulk", *(f"depth:{number}" for number in CLASS_NAMES)]
    names += [*(f"lying:{kind.value}" for kind in FailureType)]
    yield from _wrong_stats(snapshot, {name: real[name] for name in names}, "stat", "there are")


def check_limits(snapshot: Snapshot) -> Iterator[Violation]:
    """Check the counters of limits by key and their entries in the indexes, and that tasks wait only at full limits."""
    real: dict[str, Counter[str]] = {}
    queues: dict[tuple[str, str], set[str]] = {}
    for task_id, record in snapshot.tasks.items():
        state, user = record.get(b"state"), decode_name(record.get(b"user", b""))
        if state not in (b"queued", b"started") or b"limits" not in record:
            continue
        waits_at = snapshot.waits_at(task_id) if state == b"queued" else ""
        if waits_at:
            real.setdefault(waits_at, Counter())["waiting"] += 1
            queues.setdefault((user, waits_at), set()).add(task_id)
        for limit in decode_limits(record[b"limits"]):
            limit_id = limit_id_of(limit.key, user if limit.is_of_user else None)
            has_queue = not limit.is_of_user or snapshot.limits.get(limit_id, {}).get(b"queue") == b"1"
            kind = "running" if state == b"started" else "admitted"
            is_counted = record.get(b"companion") != b"1" if state == b"started" else not (waits_at or has_queue)
            counts = real.setdefault(limit_id, Counter())
            counts[kind] += is_counted
            if kind == "admitted":
                counts["admitted:" + decode_name(record.get(b"priority", b""))] += is_counted
    indexed = {limit_id for name in ("limits", *LIMIT_INDEXES) for limit_id in snapshot.registry(name)}
    indexed |= {
        entry.removeprefix(LIMIT_MARK) for entry in snapshot.registry("throttled") if entry.startswith(LIMIT_MARK)
    }
    for limit_id in snapshot.limits.keys() | real.keys() | indexed:
        places = {name: real.get(limit_id, Counter())[name] for name in LIMIT_COUNTS}
        places |= {f"users:{lane}": len(snapshot.limit_users.get(f"{lane}:{limit_id}", ())) for lane in LANES}
        record = snapshot.limits.get(limit_id, {})
        yield from _wrong_counts(snapshot, "limits", "limit", limit_id, record, places)
        yield from _check_places(snapshot, limit_id, record, places)
    yield from _check_limit_queues(snapshot, queues)
    parked = sum(map(len, snapshot.parked.values()))
    limited = sum(counts["waiting"] for counts in real.values())
    yield from _wrong_stats(snapshot, {"limited": limited, "parked": parked}, "stat", "there are")


def _check_places(
    snapshot: Snapshot, limit_id: str, record: Mapping[bytes, bytes], counts: Mapping[str, int]
) -> Iterator[Violation]:
    clock = number(snapshot.stats.get(b"clock"))
    gap, burst = number(record.get(b"gap")), number(record.get(b"burst"), 1.0)
    opens_at = max(number(record.get(b"closed")), number(record.get(b"tat")) - gap * (burst - 1) if gap else 0)
    full = b"at_once" in record and counts["running"] >= number(record[b"at_once"])
    is_open = opens_at <= clock and not full
    awaited = LIMIT_MARK + limit_id in snapshot.registry("throttled")
    repair = ("limit", limit_id, "waiting:0")
    listed = int(number(record.get(b"listed")))
    for lane, bit in zip(LANES, (1, 2, 4), strict=True):
        users, is_listed = counts[f"users:{lane}"], limit_id in snapshot.registry(f"limited:{lane}")
        is_wrong = is_listed != bool(listed & bit)
        if (
            is_wrong
            or (is_listed and not users)
            or (users and counts["waiting"] and is_open and not (is_listed or awaited))
        ):
            detail = f"the index of limits with a free place disagrees in lane {lane}"
            yield snapshot.violation("limits", f"limit:{limit_id}", detail, *repair)
    if awaited != (b"held" in record) or (
        counts["waiting"] and not counts["admitted"] and opens_at > clock and not awaited
    ):
        yield snapshot.violation("limits", f"limit:{limit_id}", "is not looked at when it opens", *repair)
    has_queue = limit_id.startswith("s:") or record.get(b"queue") == b"1"
    tokens = burst - math.ceil(max(0, number(record.get(b"tat")) - clock) / gap) if gap else math.inf
    free = min(tokens, number(record.get(b"at_once"), math.inf) - counts["running"])
    if counts["waiting"] and not has_queue and is_open and free > counts["admitted"] and not awaited:
        yield snapshot.violation("limits", f"limit:{limit_id}", "has a free place, and tasks wait for it", *repair)
    if (counts["waiting"] > 0 or b"closed" in record) != (limit_id in snapshot.registry("limits")):
        yield snapshot.violation(
            "limits", f"limit:{limit_id}", "its record and the registry of limits disagree", *repair
        )


def _check_limit_queues(snapshot: Snapshot, queues: Mapping[tuple[str, str], set[str]]) -> Iterator[Violation]:
    """Check that a waiting task is in the queue of its limit, and that its user waits at the limit, or will be added to
    the limit.
    """
    found = {}
    for name, members in snapshot.limit_queues.items():
        size, _, rest = name.partition(":")
        raw = encode_name(rest)
        found[decode_name(raw[: int(size)]), decode_name(raw[int(size) + 1 :])] = set(members)
    parked = {decode_name(encode_name(member)) for members in snapshot.parked.values() for member in members}
    for user, limit_id in found.keys() | queues.keys():
        for task_id in found.get((user, limit_id), set()) ^ queues.get((user, limit_id), set()):
            detail = f"{task_id!r} of user {user!r} is not both waiting at the limit and in its queue"
            yield snapshot.violation("limits", f"limit:{limit_id}", detail, "limited", limit_id, task_id)
        if limit_id.startswith("u:") and snapshot.limits.get(limit_id, {}).get(b"queue") != b"1":
            continue
        for task_id in queues.get((user, limit_id), ()):
            lane = read_lane(snapshot.tasks[task_id].get(b"priority", b"3"))
            place = f"{lane}:{len(encode_name(limit_id))}:{limit_id}{user}"
            if user not in snapshot.limit_users.get(f"{lane}:{limit_id}", {}) and place not in parked:
                detail = f"user {user!r} has a waiting task of lane {lane} and does not stand at the limit"
                yield snapshot.violation("limits", f"limit:{limit_id}", detail, "limited", limit_id, task_id)


def _dependencies(snapshot: Snapshot) -> Iterator[Violation]:
    """Check that both directions of each dependency agree.

    A DEFERRED task must wait for a task that can still end, and a task in another state must not wait.
    """
    edges: dict[str, set[tuple[str, str]]] = {kind: set() for kind in ("waiting", "blocked", "reacting", "first")}
    for name, members in snapshot.deps.items():
        kind, _, task_id = name.partition(":")
        if kind in edges:
            edges[kind] |= {(member, task_id) if kind == "blocked" else (task_id, member) for member in members}
    for blocker, waiter in sorted(edges["waiting"] ^ edges["blocked"]):
        side, task_id = ("waiting", blocker) if (blocker, waiter) in edges["waiting"] else ("blocked", waiter)
        detail = f"{waiter!r} waits for {blocker!r} on this side only"
        yield snapshot.violation("dependencies", f"deps:{side}:{task_id}", detail, "edge", blocker, waiter)
    for kind in ("reacting", "first"):
        for blocker, waiter in sorted(edges[kind] - edges["waiting"]):
            detail = f"{waiter!r} does not wait for it"
            yield snapshot.violation("dependencies", f"deps:{kind}:{blocker}", detail, "edge", blocker, waiter)
    yield from _wrong_stats(snapshot, {"edges": len(edges["blocked"])}, "stat", "there are")
    yield from _blocked_tasks(snapshot, edges["blocked"], edges["reacting"])
    for task_id in sorted(snapshot.remotes.keys() ^ snapshot.registry("mirrors").keys()):
        detail = "a task of another shard is not both known and watched"
        yield snapshot.violation("mirrors", f"remote:{task_id}", detail, "mirror", task_id, "")
    for name in sorted(snapshot.deps):
        kind, _, task_id = name.partition(":")
        state = snapshot.tasks.get(task_id, {}).get(b"state")
        if kind == "remote" and state in (b"finished", b"canceled") and task_id not in snapshot.registry("resolving"):
            detail = f"{task_id!r} has ended, and these shards were not notified"
            yield snapshot.violation("mirrors", f"deps:{name}", detail, "watchers", task_id, "")


def _blocked_tasks(
    snapshot: Snapshot, edges: set[tuple[str, str]], reacting: set[tuple[str, str]]
) -> Iterator[Violation]:
    resolving = snapshot.registry("resolving")
    deferred = {task_id for task_id, record in snapshot.tasks.items() if record.get(b"state") == b"deferred"}
    for task_id in sorted(deferred - {waiter for _, waiter in edges}):
        yield snapshot.violation("deferred", f"task:{task_id}", "deferred, but nothing blocks it", "task", task_id, "")
    for blocker, task_id in sorted(edges):
        key, fix = f"deps:blocked:{task_id}", ("edge", blocker, task_id)
        record = snapshot.tasks.get(blocker) or snapshot.remotes.get(blocker)
        state = None if record is None else record.get(b"state")
        is_over = state in (None, b"finished", b"canceled") or (state == b"failed" and (blocker, task_id) in reacting)
        if task_id not in deferred:
            yield snapshot.violation("deferred", key, f"blocked by {blocker!r}, but not deferred", *fix)
        elif is_over and blocker not in resolving:
            yield snapshot.violation("orphan", key, f"waits for {blocker!r}, which is over", *fix)
        elif blocker in snapshot.tasks and record is not None and b"waited" not in record:
            detail = f"does not know that {task_id!r} waits for it"
            yield snapshot.violation("dependencies", f"task:{blocker}", detail, *fix)


def _runs(snapshot: Snapshot) -> Iterator[Violation]:
    """Check that the members of each run are the tasks whose records name the run."""
    recorded = {
        (decode_name(record[b"run"]), task_id) for task_id, record in snapshot.tasks.items() if b"run" in record
    }
    members = {(run, task_id) for run, ids in snapshot.runs.items() for task_id in ids}
    for run, task_id in sorted(recorded ^ members):
        yield snapshot.violation("run", f"run:{run}", f"{task_id!r} and its run disagree", "run", run, task_id)


def _results(snapshot: Snapshot) -> Iterator[Violation]:
    """Check that the tasks with a counted result are the tasks in the lists of their users."""
    counted = {
        (decode_name(record.get(b"user", b"")), task_id)
        for task_id, record in snapshot.tasks.items()
        if b"result_size" in record
    }
    listed = {(user, task_id) for user, members in snapshot.results.items() for task_id in members}
    for user, task_id in sorted(counted ^ listed):
        detail = f"{task_id!r} and the list of its user's results disagree"
        yield snapshot.violation("results", f"results:{user}", detail, "result", user, task_id)


def _owners(snapshot: Snapshot) -> Iterator[Violation]:
    owned = {"payload": snapshot.heads.keys(), "history": snapshot.histories, "logs": snapshot.logs}
    for kind, ids in owned.items():
        for task_id in ids - snapshot.tasks.keys():
            name = f"{kind}:{task_id}"
            yield snapshot.violation("owner", name, "its task is gone", "key", name, "")
    for user in snapshot.registry("users").keys() - snapshot.users.keys():
        yield snapshot.violation("owner", "users", f"member {user!r} has no record", "place", user, "")
    for name in snapshot.others:
        yield snapshot.violation("owner", name, "nobody's key")
