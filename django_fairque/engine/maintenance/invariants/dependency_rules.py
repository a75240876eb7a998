"""The checker's rules about dependencies and runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_fairque.engine.maintenance.invariants.snapshot import Snapshot, Violation, name_of
from django_fairque.engine.model.durations import number

if TYPE_CHECKING:
    from collections.abc import Iterator


def check_dependencies(snapshot: Snapshot, prefix: str) -> Iterator[Violation]:
    """Both directions agree; who is DEFERRED waits for something that can still end; who is not, does not."""
    edges = {
        kind: {(blocker, waiter) for blocker, waiter in _edges(snapshot, kind)}
        for kind in ("waiting", "blocked", "reacting", "first")
    }
    for blocker, waiter in sorted(edges["waiting"] ^ edges["blocked"]):
        side = "waiting" if (blocker, waiter) in edges["waiting"] else "blocked"
        key = f"{prefix}deps:{side}:{blocker if side == 'waiting' else waiter}"
        yield Violation(
            "dependencies", key, f"{waiter!r} waits for {blocker!r} on this side only", ("edge", blocker, waiter)
        )
    for kind in ("reacting", "first"):
        for blocker, waiter in sorted(edges[kind] - edges["waiting"]):
            key = f"{prefix}deps:{kind}:{blocker}"
            yield Violation("dependencies", key, f"{waiter!r} does not wait for it", ("edge", blocker, waiter))
    says = int(number(snapshot.counters.get("stats", {}).get(b"edges")))
    if says != len(edges["blocked"]):
        real = len(edges["blocked"])
        fix = ("stat", "edges", str(real - says))
        yield Violation("counters", f"{prefix}stats", f"edges is {says}, there are {real}", fix)
    yield from _blocked_tasks(snapshot, prefix, edges["blocked"], edges["reacting"])
    for task_id in sorted(snapshot.remotes.keys() ^ snapshot.registry("mirrors").keys()):
        detail = "a task of another shard is not both known and watched"
        yield Violation("mirrors", f"{prefix}remote:{task_id}", detail, ("mirror", task_id, ""))
    for name in sorted(snapshot.deps):
        kind, _, task_id = name.partition(":")
        state = snapshot.tasks.get(task_id, {}).get(b"state")
        if kind == "remote" and state in (b"finished", b"canceled") and task_id not in snapshot.registry("resolving"):
            detail = f"{task_id!r} has ended, and these shards were not notified"
            yield Violation("mirrors", f"{prefix}deps:{name}", detail, ("watchers", task_id, ""))


def _blocked_tasks(
    snapshot: Snapshot, prefix: str, edges: set[tuple[str, str]], reacting: set[tuple[str, str]]
) -> Iterator[Violation]:
    resolving = snapshot.registry("resolving")
    blockers: dict[str, list[str]] = {}
    for blocker, waiter in edges:
        blockers.setdefault(waiter, []).append(blocker)
    deferred = {task_id for task_id, record in snapshot.tasks.items() if record.get(b"state") == b"deferred"}
    for task_id in sorted(deferred - blockers.keys()):
        yield Violation("deferred", f"{prefix}task:{task_id}", "deferred, but nothing blocks it", ("task", task_id, ""))
    for task_id in sorted(blockers.keys() - deferred):
        for blocker in sorted(blockers[task_id]):
            key = f"{prefix}deps:blocked:{task_id}"
            yield Violation("deferred", key, f"blocked by {blocker!r}, but not deferred", ("edge", blocker, task_id))
    for task_id in sorted(deferred & blockers.keys()):
        for blocker in sorted(blockers[task_id]):
            record = snapshot.tasks.get(blocker) or snapshot.remotes.get(blocker)
            state = None if record is None else record.get(b"state")
            is_over = state in (None, b"finished", b"canceled") or (
                state == b"failed" and (blocker, task_id) in reacting
            )
            if is_over and blocker not in resolving:
                key = f"{prefix}deps:blocked:{task_id}"
                yield Violation("orphan", key, f"waits for {blocker!r}, which is over", ("edge", blocker, task_id))
            elif blocker in snapshot.tasks and record is not None and b"waited" not in record:
                detail = f"does not know that {task_id!r} waits for it"
                yield Violation("dependencies", f"{prefix}task:{blocker}", detail, ("edge", blocker, task_id))


def check_runs(snapshot: Snapshot, prefix: str) -> Iterator[Violation]:
    """The members of a run are the tasks that say so."""
    recorded = {(name_of(record[b"run"]), task_id) for task_id, record in snapshot.tasks.items() if b"run" in record}
    members = {(run, task_id) for run, ids in snapshot.runs.items() for task_id in ids}
    for run, task_id in sorted(recorded ^ members):
        yield Violation("run", f"{prefix}run:{run}", f"{task_id!r} and its run disagree", ("run", run, task_id))


def _edges(snapshot: Snapshot, kind: str) -> Iterator[tuple[str, str]]:
    """(blocker, waiter) of one of the four kinds of sets."""
    for name, members in snapshot.deps.items():
        found, _, task_id = name.partition(":")
        if found == kind:
            for member in members:
                yield (member, task_id) if kind == "blocked" else (task_id, member)
