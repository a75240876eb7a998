"""Reports the results of a campaign: a table for people, JSON for machines."""

from __future__ import annotations

import platform
import statistics
from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .checker import Verdict
    from .schedule import Schedule
    from .world import World


def limits(lease: float) -> dict[str, float]:
    """Seconds within which 99 of 100 recoveries must be over."""
    return {
        "child": 1.0,
        "supervisor": lease + 2,
        "supervisor after a clock step": lease + 2,
        "zombie": lease + 2,
        "server": 2.0,
    }


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def result(world: World, schedule: Schedule, done: Counter[str], verdict: Verdict) -> dict[str, Any]:
    recoveries = {
        fault: {
            "count": len(taken),
            "p50": statistics.median(taken),
            "p99": percentile(taken, 0.99),
            "max": max(taken),
            "limit": limits(world.lease).get(fault),
        }
        for fault, taken in sorted(world.recoveries.taken.items())
        if taken
    }
    late = []
    for fault, limit in limits(world.lease).items():
        taken = world.recoveries.taken.get(fault) or [0.0]
        if (p99 := percentile(taken, 0.99)) > limit:
            late.append(f"recovery after {fault}: p99 is {p99:.2f} s, expected {limit:g} s at most")
    return {
        "seed": schedule.seed,
        "minutes": schedule.minutes,
        "lease": world.lease,
        "server": f"{world.server.name} {world.server.version}",
        "python": platform.python_version(),
        "faults": {fault: {"planned": count, "done": done[fault]} for fault, count in schedule.counts.items()},
        "recovery": recoveries,
        "counts": dict(sorted(verdict.counts.items())),
        "stale_outcomes_refused": world.stale_refused,
        "stale_outcomes_told_by_workers": world.fleet.count_in_logs("its lease was over"),
        "figures": {name: value for name, value in world.figures.items() if isinstance(value, (int, float))},
        "seconds": {name: round(seconds, 1) for name, seconds in world.phase.seconds.items()},
        "notes": world.notes,
        "violations": list(verdict.violations),
        "late": late,
        "schedule": schedule.lanes,
    }


def print_table(found: dict[str, Any]) -> None:
    print(f"\nfault campaign: seed {found['seed']}, {found['minutes']:g} minutes, {found['server']}")
    for fault, counts in found["faults"].items():
        short = "" if counts["done"] >= counts["planned"] else f"  (of {counts['planned']} planned)"
        print(f"  {fault:<32}{counts['done']:>8}{short}")
    print("recovery, s                            n      p50      p99      max    limit")
    for fault, times in found["recovery"].items():
        limit = "" if times["limit"] is None else f"{times['limit']:g}"
        print(f"  {fault:<30}{times['count']:>8}{times['p50']:>9.3f}{times['p99']:>9.3f}{times['max']:>9.3f}{limit:>9}")
    print("judged")
    figures = {**found["counts"], "stale outcomes refused": found["stale_outcomes_refused"], **found["figures"]}
    for name, value in figures.items():
        print(f"  {name:<32}{value:>8.6g}")
    print("seconds")
    for name, seconds in {**found["seconds"], "in all": sum(found["seconds"].values())}.items():
        print(f"  {name:<32}{seconds:>8.1f}")
    for note in found["notes"]:
        print(f"note: {note}")
    for line in found["late"]:
        print(f"LATE: {line}")
    for violation in found["violations"]:
        print(f"VIOLATION: {violation}")
    print("passed" if not found["violations"] else f"FAILED: {len(found['violations'])} violations", flush=True)


def together(found: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Add up the faults, counts and violations of several runs, and take the longest p99 of each recovery."""
    done: Counter[str] = Counter()
    judged: Counter[str] = Counter()
    for report in found:
        done.update({fault: counts["done"] for fault, counts in report["faults"].items()})
        judged.update(report["counts"])
        judged.update(
            {"stale outcomes refused": report["stale_outcomes_refused"], "violations": len(report["violations"])}
        )
    slowest = {
        fault: max(report["recovery"][fault]["p99"] for report in found if fault in report["recovery"])
        for fault in sorted({fault for report in found for fault in report["recovery"]})
    }
    return {"faults": done, "judged": judged, "longest p99 of a run, s": slowest}


def print_together(found: Sequence[dict[str, Any]]) -> None:
    seeds = [report["seed"] for report in found]
    print(f"\n{len(found)} runs together: seeds {seeds[0]} to {seeds[-1]}, {found[0]['server']}")
    for title, figures in together(found).items():
        print(title)
        for name, value in figures.items():
            print(f"  {name:<32}{f'{value:,}' if isinstance(value, int) else f'{value:.3f}':>12}")
