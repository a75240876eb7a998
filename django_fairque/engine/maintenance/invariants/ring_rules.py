"""Checked: who can be served stands in the one ring that is right, users, members of organizations, and organizations."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django_fairque.engine.maintenance.invariants.snapshot import Snapshot, Violation, name_of
from django_fairque.engine.model.durations import number
from django_fairque.engine.scripting.commands import ORGANIZATION_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Waiting = Mapping[str, Counter[str]]

ORGANIZATION_MARK = name_of(ORGANIZATION_PREFIX)
RUNNING_TASK_SUMS = ("expected", "start", "companions")
"""Sums over running tasks: what they were charged, and the moments (both microseconds) at which they were handed out."""
WEIGHT_UNITS = 1_000_000
"""Weights are summed in millionths, as in lua/lib/ring.lua."""
ROUNDING_TOLERANCE_MICROSECONDS = 1_000_000
"""How far the sum of moments may be off: it is a double, and beyond 2^53 from some 150 tasks on."""


@dataclass
class Sums:
    """What an organization's record must say, and whether the organization can be served."""

    members: int = 0
    ready: int = 0
    run: int = 0
    expected: int = 0
    start: int = 0
    companions: int = 0


def differs(field: str, recorded: int, real: int) -> bool:
    return abs(recorded - real) > (ROUNDING_TOLERANCE_MICROSECONDS if field == "start" else 0)


def organization_of(snapshot: Snapshot, user: str) -> str | None:
    organization = snapshot.users.get(user, {}).get(b"group")
    return None if organization is None else name_of(organization)


def _is_served(record: Mapping[bytes, bytes], ready: int, running: int) -> bool:
    """The rule of ``can_be_served`` in lua/lib/ring.lua."""
    cap = record.get(b"cap")
    capped = cap is not None and running >= number(cap)
    return ready > 0 and b"paused" not in record and b"held" not in record and not capped


def servable(snapshot: Snapshot, waiting: Waiting) -> set[str]:
    """The users who can be served, whatever holds for their organizations."""
    found = set()
    for user, real in waiting.items():
        ready = sum(number for name, number in real.items() if name.startswith("ready:"))
        if _is_served(snapshot.users.get(user, {}), ready, real["run"]):
            found.add(user)
    return found


def check_rings(snapshot: Snapshot, prefix: str, waiting: Waiting) -> Iterator[Violation]:
    """Users in the shard's ring, members in that of their organization, each in no other."""
    served = servable(snapshot, waiting)
    ring = {entry for entry in snapshot.registry("ring") if not entry.startswith(ORGANIZATION_MARK)}
    grouped = snapshot.registry("grouped")
    for user in snapshot.users.keys() | served | ring | grouped.keys():
        organization, is_served = organization_of(snapshot, user), user in served
        there = ring if organization is None else snapshot.rings.get(organization, {})
        repair = ("place", user, "")
        if is_served != (user in there):
            word = "can be served but is not in the ring" if is_served else "is in the ring but can't be served"
            yield Violation("ring", f"{prefix}user:{user}", word, repair)
        if organization is not None and user in ring:
            yield Violation(
                "ring", f"{prefix}user:{user}", "belongs to an organization and is in the shard's ring", repair
            )
        if (is_served and organization is not None) != (user in grouped):
            word = "the registry of members who can be served and its organization's ring disagree"
            yield Violation("ring", f"{prefix}user:{user}", word, repair)
    for organization, members in snapshot.rings.items():
        for user in members:
            if organization_of(snapshot, user) != organization:
                detail = f"{user!r} is in it and does not belong to the organization"
                yield Violation("ring", f"{prefix}ring:{organization}", detail, ("member", organization, user))


def _sums(snapshot: Snapshot, waiting: Waiting) -> dict[str, Sums]:
    served, found = servable(snapshot, waiting), {organization: Sums() for organization in snapshot.organizations}
    for user in snapshot.users:
        if (organization := organization_of(snapshot, user)) is not None:
            sums = found.setdefault(organization, Sums())
            sums.members += 1
            sums.ready += user in served
            for name in ("run", *RUNNING_TASK_SUMS):
                setattr(sums, name, getattr(sums, name) + waiting.get(user, Counter())[name])
    return found


def check_organizations(snapshot: Snapshot, prefix: str, waiting: Waiting) -> Iterator[Violation]:
    """An organization exists while it has members or settings, counts right, and is in the ring if a member can be served."""
    ring, known = snapshot.registry("ring"), snapshot.registry("groups")
    sums = _sums(snapshot, waiting)
    behind = 0
    for organization in (
        sums.keys()
        | known.keys()
        | {entry.removeprefix(ORGANIZATION_MARK) for entry in ring if entry.startswith(ORGANIZATION_MARK)}
    ):
        record, real, key = (
            snapshot.organizations.get(organization, {}),
            sums.get(organization, Sums()),
            f"{prefix}group:{organization}",
        )
        for name in ("members", "ready", "run", *RUNNING_TASK_SUMS):
            recorded = int(number(record.get(name.encode())))
            if differs(name, recorded, getattr(real, name)):
                detail = f"{name} is {recorded}, there are {getattr(real, name)}"
                yield Violation(
                    "organization counts",
                    key,
                    detail,
                    ("group", organization, f"{name}:{getattr(real, name) - recorded}"),
                )
        is_needed = real.members > 0 or _has_settings(record)
        if record and not is_needed:
            yield Violation(
                "organizations", key, "has neither members nor settings", ("group", organization, "members:0")
            )
        is_served = _is_served(record, real.ready, real.run)
        behind += real.ready - is_served
        repair = ("standing", organization, "")
        if is_served != (ORGANIZATION_MARK + organization in ring):
            word = "can be served but is not in the ring" if is_served else "is in the ring but can't be served"
            yield Violation("ring", key, word, repair)
        if bool(record) != (organization in known):
            yield Violation("organizations", key, "its record and the registry of organizations disagree", repair)
    yield from _in_stats(snapshot, prefix, {"groups": len(snapshot.organizations), "behind": behind})


def _counted(record: Mapping[bytes, bytes], *, is_active: bool) -> int:
    """What a user or organization counts in the sum of the weights of those with work."""
    return math.floor(number(record.get(b"weight"), 1.0) * WEIGHT_UNITS + 0.5) if is_active else 0


def check_weights(snapshot: Snapshot, prefix: str, waiting: Waiting) -> Iterator[Violation]:
    """Each ring's ``active`` is the sum of the weights of those with work; each record has what it counts there as ``counted``.

    A record without the field was last written by a version that did not count, and is counted with its next change.
    """
    served, organizations, active = servable(snapshot, waiting), _sums(snapshot, waiting), Counter[str | None]()
    for user, record in snapshot.users.items():
        if (recorded := record.get(b"counted")) is not None:
            is_active = user in served or waiting.get(user, Counter())["run"] > 0
            real = _counted(record, is_active=is_active)
            active[organization_of(snapshot, user)] += real
            if int(float(recorded)) != real:
                detail = f"counts {int(float(recorded))} millionths of a weight, must count {real}"
                yield Violation(
                    "weights", f"{prefix}user:{user}", detail, ("user", user, f"counted:{real - int(float(recorded))}")
                )
    for organization, record in snapshot.organizations.items():
        key, sums = f"{prefix}group:{organization}", organizations[organization]
        if (recorded := record.get(b"counted")) is not None:
            real = _counted(record, is_active=_is_served(record, sums.ready, sums.run) or sums.run > 0)
            active[None] += real
            if int(float(recorded)) != real:
                detail = f"counts {int(float(recorded))} millionths of a weight, must count {real}"
                yield Violation(
                    "weights", key, detail, ("group", organization, f"counted:{real - int(float(recorded))}")
                )
        difference = active[organization] - int(float(record.get(b"active", 0)))
        if difference:
            detail = f"the weights of members with work are off by {difference} millionths"
            yield Violation("weights", key, detail, ("group", organization, f"active:{difference}"))
    difference = active[None] - int(float(snapshot.counters.get("stats", {}).get(b"active", 0)))
    if difference:
        detail = f"the weights of users and organizations with work are off by {difference} millionths"
        yield Violation("weights", f"{prefix}stats", detail, ("sum", "active", str(difference)))


def _has_settings(record: Mapping[bytes, bytes]) -> bool:
    return b"cap" in record or b"paused" in record or number(record.get(b"weight"), 1.0) != 1


def _in_stats(snapshot: Snapshot, prefix: str, real: Mapping[str, int]) -> Iterator[Violation]:
    for name, count in real.items():
        recorded = int(number(snapshot.counters.get("stats", {}).get(name.encode())))
        if recorded != count:
            repair = ("sum", name, str(count - recorded))
            yield Violation("counters", f"{prefix}stats", f"{name} is {recorded}, must be {count}", repair)
