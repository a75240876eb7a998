"""Checked: who can be served stands in the one ring that is right, users, members of groups, and groups."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django_fairque.engine.maintenance.invariants.snapshot import Snapshot, Violation, name_of
from django_fairque.engine.model.durations import number
from django_fairque.engine.scripting.keys import AS_GROUP

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Waiting = Mapping[str, Counter[str]]

MARK = name_of(AS_GROUP)
CHARGED = ("expected", "begun", "companions")
"""Sums over running tasks: what they were charged, and the moments (both microseconds) at which they were handed out."""
MICRO = 1_000_000
"""Weights are summed in millionths, as in lua/lib/ring.lua."""
ROUNDING = 1_000_000
"""How far the sum of moments may be off: it is a double, and beyond 2^53 from some 150 tasks on."""


@dataclass
class Sums:
    """What a group's record must say, and whether the group can be served."""

    members: int = 0
    ready: int = 0
    run: int = 0
    expected: int = 0
    begun: int = 0
    companions: int = 0


def differs(field: str, recorded: int, real: int) -> bool:
    return abs(recorded - real) > (ROUNDING if field == "begun" else 0)


def group_of(snapshot: Snapshot, user: str) -> str | None:
    group = snapshot.users.get(user, {}).get(b"group")
    return None if group is None else name_of(group)


def _is_served(record: Mapping[bytes, bytes], ready: int, running: int) -> bool:
    """The rule of ``can_be_served`` in lua/lib/ring.lua."""
    cap = record.get(b"cap")
    capped = cap is not None and running >= number(cap)
    return ready > 0 and b"paused" not in record and b"held" not in record and not capped


def servable(snapshot: Snapshot, waiting: Waiting) -> set[str]:
    """The users who can be served, whatever holds for their groups."""
    found = set()
    for user, real in waiting.items():
        ready = sum(number for name, number in real.items() if name.startswith("ready:"))
        if _is_served(snapshot.users.get(user, {}), ready, real["run"]):
            found.add(user)
    return found


def check_rings(snapshot: Snapshot, prefix: str, waiting: Waiting) -> Iterator[Violation]:
    """Users in the shard's ring, members in that of their group, each in no other."""
    served = servable(snapshot, waiting)
    ring = {entry for entry in snapshot.registry("ring") if not entry.startswith(MARK)}
    grouped = snapshot.registry("grouped")
    for user in snapshot.users.keys() | served | ring | grouped.keys():
        group, is_served = group_of(snapshot, user), user in served
        there = ring if group is None else snapshot.rings.get(group, {})
        repair = ("place", user, "")
        if is_served != (user in there):
            word = "can be served but is not in the ring" if is_served else "is in the ring but can't be served"
            yield Violation("ring", f"{prefix}user:{user}", word, repair)
        if group is not None and user in ring:
            yield Violation("ring", f"{prefix}user:{user}", "belongs to a group and is in the shard's ring", repair)
        if (is_served and group is not None) != (user in grouped):
            word = "the registry of members who can be served and its group's ring disagree"
            yield Violation("ring", f"{prefix}user:{user}", word, repair)
    for group, members in snapshot.rings.items():
        for user in members:
            if group_of(snapshot, user) != group:
                detail = f"{user!r} is in it and does not belong to the group"
                yield Violation("ring", f"{prefix}ring:{group}", detail, ("member", group, user))


def _sums(snapshot: Snapshot, waiting: Waiting) -> dict[str, Sums]:
    served, found = servable(snapshot, waiting), {group: Sums() for group in snapshot.groups}
    for user in snapshot.users:
        if (group := group_of(snapshot, user)) is not None:
            sums = found.setdefault(group, Sums())
            sums.members += 1
            sums.ready += user in served
            for name in ("run", *CHARGED):
                setattr(sums, name, getattr(sums, name) + waiting.get(user, Counter())[name])
    return found


def check_groups(snapshot: Snapshot, prefix: str, waiting: Waiting) -> Iterator[Violation]:
    """A group is there as long as it has members or settings, counts right, and stands in the ring if a member can be served."""
    ring, known = snapshot.registry("ring"), snapshot.registry("groups")
    sums = _sums(snapshot, waiting)
    behind = 0
    for group in sums.keys() | known.keys() | {entry.removeprefix(MARK) for entry in ring if entry.startswith(MARK)}:
        record, real, key = snapshot.groups.get(group, {}), sums.get(group, Sums()), f"{prefix}group:{group}"
        for name in ("members", "ready", "run", *CHARGED):
            recorded = int(number(record.get(name.encode())))
            if differs(name, recorded, getattr(real, name)):
                detail = f"{name} is {recorded}, there are {getattr(real, name)}"
                yield Violation(
                    "group counts", key, detail, ("group", group, f"{name}:{getattr(real, name) - recorded}")
                )
        is_needed = real.members > 0 or _has_settings(record)
        if record and not is_needed:
            yield Violation("groups", key, "has neither members nor settings", ("group", group, "members:0"))
        is_served = _is_served(record, real.ready, real.run)
        behind += real.ready - is_served
        repair = ("standing", group, "")
        if is_served != (MARK + group in ring):
            word = "can be served but is not in the ring" if is_served else "is in the ring but can't be served"
            yield Violation("ring", key, word, repair)
        if bool(record) != (group in known):
            yield Violation("groups", key, "its record and the registry of groups disagree", repair)
    yield from _in_stats(snapshot, prefix, {"groups": len(snapshot.groups), "behind": behind})


def _counted(record: Mapping[bytes, bytes], *, is_active: bool) -> int:
    """What a user or group counts in the sum of the weights of those with work."""
    return math.floor(number(record.get(b"weight"), 1.0) * MICRO + 0.5) if is_active else 0


def check_weights(snapshot: Snapshot, prefix: str, waiting: Waiting) -> Iterator[Violation]:
    """Each ring's ``active`` is the sum of the weights of those with work; each record has what it counts there as ``counted``.

    A record without the field was last written by a version that did not count, and is counted with its next change.
    """
    served, groups, active = servable(snapshot, waiting), _sums(snapshot, waiting), Counter[str | None]()
    for user, record in snapshot.users.items():
        if (recorded := record.get(b"counted")) is not None:
            is_active = user in served or waiting.get(user, Counter())["run"] > 0
            real = _counted(record, is_active=is_active)
            active[group_of(snapshot, user)] += real
            if int(float(recorded)) != real:
                detail = f"counts {int(float(recorded))} millionths of a weight, must count {real}"
                yield Violation(
                    "weights", f"{prefix}user:{user}", detail, ("user", user, f"counted:{real - int(float(recorded))}")
                )
    for group, record in snapshot.groups.items():
        key, sums = f"{prefix}group:{group}", groups[group]
        if (recorded := record.get(b"counted")) is not None:
            real = _counted(record, is_active=_is_served(record, sums.ready, sums.run) or sums.run > 0)
            active[None] += real
            if int(float(recorded)) != real:
                detail = f"counts {int(float(recorded))} millionths of a weight, must count {real}"
                yield Violation("weights", key, detail, ("group", group, f"counted:{real - int(float(recorded))}"))
        difference = active[group] - int(float(record.get(b"active", 0)))
        if difference:
            detail = f"the weights of members with work are off by {difference} millionths"
            yield Violation("weights", key, detail, ("group", group, f"active:{difference}"))
    difference = active[None] - int(float(snapshot.counters.get("stats", {}).get(b"active", 0)))
    if difference:
        detail = f"the weights of users and groups with work are off by {difference} millionths"
        yield Violation("weights", f"{prefix}stats", detail, ("sum", "active", str(difference)))


def _has_settings(record: Mapping[bytes, bytes]) -> bool:
    return b"cap" in record or b"paused" in record or number(record.get(b"weight"), 1.0) != 1


def _in_stats(snapshot: Snapshot, prefix: str, real: Mapping[str, int]) -> Iterator[Violation]:
    for name, count in real.items():
        recorded = int(number(snapshot.counters.get("stats", {}).get(name.encode())))
        if recorded != count:
            repair = ("sum", name, str(count - recorded))
            yield Violation("counters", f"{prefix}stats", f"{name} is {recorded}, must be {count}", repair)
