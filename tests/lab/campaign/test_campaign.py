"""Short campaigns: the engine as it is passes, and one that is broken in a small way does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.all_tasks import all_tasks
from tests.lab.campaign import broken_engines as broken
from tests.lab.campaign import report
from tests.lab.campaign.run import run
from tests.worker.conftest import eventually

from .schedule import ALWAYS, PER_SLICE, SLICE, draw
from .world import World

pytestmark = pytest.mark.slow


def campaign(faults: list[str], minutes: float, lua: Path | None = None, seed: int = 7) -> dict[str, Any]:
    schedule = draw(seed, minutes, faults)
    # Long tasks are pushed so often that every frozen group is running one of them.
    with World(
        seed, lease=1.5, faults=faults, rate=100, every_long=0.25, lua=lua, drain_within=10 if lua else 120
    ) as world:
        done, verdict = run(world, schedule)
        return report.result(world, schedule, done, verdict)


def test_the_unbroken_engine_passes_the_fault_campaign() -> None:
    found = campaign(["child", "server", "scripts"], 0.1)
    assert [line for line in found["violations"] if not line.startswith("recovery")] == []
    assert found["counts"]["finished"] > 100
    assert found["faults"]["server"]["done"]


@pytest.mark.parametrize(
    ("name", "faults", "caught"),
    [
        ("without a fence", ["zombie"], "stale outcomes believed"),
        ("without a lease", ["supervisor"], "lost: "),
        ("forgets dependents", ["child"], "lost: "),
        ("forgets a task", ["child"], "lost: "),
    ],
)
def test_the_campaign_finds_a_broken_engine(name: str, faults: list[str], caught: str, tmp_path: Path) -> None:
    """One of three short campaigns catches it. A single one may have too few faults at the right moment."""
    lua = broken.make(name, tmp_path)
    violations: list[str] = []
    for seed in (7, 8, 9):
        with broken.used(lua):
            violations += campaign(faults, 0.2, lua, seed)["violations"]
        if any(line.startswith(caught) for line in violations):
            return
    raise AssertionError(f"not caught in three campaigns: {violations}")


def test_the_schedule_follows_from_the_seed() -> None:
    faults = list(PER_SLICE)
    assert draw(1, 4, faults) == draw(1, 4, faults)
    assert draw(1, 4, faults).lanes != draw(2, 4, faults).lanes


def test_faults_that_are_required_in_each_run_come_early() -> None:
    for seed in range(50):
        steps = [kind for kind, _ in draw(seed, SLICE, list(PER_SLICE)).lanes["server"]]
        assert steps.count("memory") == PER_SLICE["memory"]
        assert max(place for place, kind in enumerate(steps) if kind in ALWAYS) <= len(steps) / 2 + len(ALWAYS)


def test_a_worker_process_that_survives_an_outage_does_not_report_for_another() -> None:
    """While the server was away nobody ended it, so its outcome would rightly be believed."""
    with World(7, lease=30, faults=["child"], rate=20) as world:
        child = eventually(world.fleet.children)[0]
        held: dict[str, list[tuple[str, int]]] = {}
        while not held:
            held = world.held([child.worker]) or {}
        world.speak_for(held)
        world.stop_producers()
        assert not [task for task in all_tasks(world.queue).values() if task.result and task.result.get("stale")]
