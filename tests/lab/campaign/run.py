"""One run: quiet faults, then all lanes side by side, then healing, draining, judging."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

from tests.all_tasks import all_tasks
from tests.lab.campaign import checker, faults, journal, report, server_faults
from tests.lab.campaign import isolated_faults as quiet
from tests.lab.campaign.world import MANY_DELIVERIES

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_fairque.engine.model.records import Attempt
    from tests.lab.campaign.schedule import Schedule
    from tests.lab.campaign.world import World

IDLE = 0.02
"""Seconds before a fault that met nobody is tried again."""


def _faults(lane: str) -> dict[str, Callable[[World, random.Random], bool]]:
    return {
        "child": faults.kill_child,
        "supervisor": faults.kill_supervisor,
        "zombie": lambda world, _: faults.freeze_group(world, int(lane[-1])),
        "server": server_faults.kill_server,
        "network": server_faults.break_network,
        "scripts": server_faults.forget_scripts,
        "clients": server_faults.kill_clients,
        "memory": server_faults.fill_memory,
        "disk": server_faults.fill_disk,
    }


class Lane:
    """Goes through its steps, evenly over the time there is; those it does not get to are left."""

    def __init__(self, world: World, name: str, steps: list[tuple[str, int]], until: float, done: Counter[str]) -> None:
        self._world, self._steps, self._until, self._done = world, steps, until, done
        self._faults = _faults(name)
        self._thread = threading.Thread(target=self._go, name=name, daemon=True)
        self.error: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        self._thread.join()
        if self.error is not None:
            raise self.error

    def _go(self) -> None:
        try:
            self.run()
        except BaseException as error:  # noqa: BLE001 - raised by `join`
            self.error = error

    def run(self) -> None:
        began = time.monotonic()
        every = (self._until - began) / max(1, len(self._steps))
        for number, (kind, seed) in enumerate(self._steps):
            time.sleep(max(0.0, began + number * every - time.monotonic()))
            while time.monotonic() < self._until:
                if self._faults[kind](self._world, random.Random(seed)):
                    self._done[kind] += 1
                    break
                if kind == "disk":
                    break
                time.sleep(IDLE)


def run(world: World, schedule: Schedule) -> tuple[Counter[str], checker.Verdict]:
    """Do all of it; what was done, and the verdict."""
    done: Counter[str] = Counter()
    _quiet(world, schedule, done)
    if schedule.lanes:
        with world.phase("faults side by side"):
            _side_by_side(world, schedule, done)
    with world.phase("drain"):
        _drain(world)
    with world.phase("judge"):
        return done, _judge(world)


def _side_by_side(world: World, schedule: Schedule, done: Counter[str]) -> None:
    until = time.monotonic() + schedule.seconds
    lanes = [Lane(world, name, steps, until, done) for name, steps in schedule.lanes.items() if name != "server"]
    for lane in lanes:
        lane.start()
    Lane(world, "server", schedule.lanes.get("server", []), until, done).run()
    time.sleep(max(0.0, until - time.monotonic()))
    for lane in lanes:
        lane.join()


def _quiet(world: World, schedule: Schedule, done: Counter[str]) -> None:
    counts = schedule.counts
    if "poison" in counts:
        with world.phase("poison"):
            done["poison"] = quiet.poison(world, counts["poison"])
        world.fleet.deliveries = MANY_DELIVERIES
    if "deploy" in counts or ("poison" in counts and schedule.lanes):  # groups are wanted that hand out more often
        with world.phase("deploys"):
            quiet.deploy(world, counts.get("deploy", 1))
        done["deploy"] = counts.get("deploy", 0)
    if world.clock is not None:
        with world.phase("clock steps"):
            for number in range(counts["clock"]):
                quiet.step_clock(world, (number + 1) * quiet.STEP)
                done["clock"] += 1


def _drain(world: World) -> None:
    """Mend everything, and let what was pushed come to its end; then everybody goes home."""
    world.stop_producers()
    world.fleet.wait_ready()

    def is_drained() -> bool:
        states = world.queue.get_stats(0).states
        return not (states["queued"] or states["started"] or states["scheduled"] or states["deferred"])

    world.wait(is_drained, world.drain_within, "some pushed tasks did not come to an end")
    for left in world.recoveries.left():
        world.violations.append(f"never given back: {left}")
    codes = world.fleet.stop()
    if any(codes):
        world.violations.append(f"workers ended with {codes} on SIGTERM, expected 0")


def _judge(world: World) -> checker.Verdict:
    world.violations += [f"invariant: {violation}" for violation in world.queue.check_invariants()[:20]]
    tasks = all_tasks(world.queue)
    runs = checker.runs_of(world.fleet.effects())
    again = [
        task_id for task_id, task in tasks.items() if task.delivery > 1 or len(runs.get(task_id, _NONE).starts) > 1
    ]
    histories = {task_id: world.queue.history(task_id) for task_id in again}
    pushes = checker.pushes_of(journal.read(world.directory / "history"))
    verdict = checker.judge(pushes, runs, tasks, histories)
    _judge_deploys(world, histories)
    for name, (since, until) in zip(("before", "during"), world.figures.get("waits", ()), strict=False):
        some = checker.waits(pushes, runs, since, until)
        world.figures[f"wait p95 {name} poison, s"] = report.percentile(some, 0.95) if some else 0.0
    verdict.violations += world.violations
    return verdict


_NONE = checker.Runs()


def _judge_deploys(world: World, histories: dict[str, list[Attempt]]) -> None:
    for since, until in world.figures.get("deploys", ()):
        burnt = checker.burnt_in(histories, histories, since, until)
        if burnt:
            world.violations.append(f"deploy: {len(burnt)} tasks were not ended gracefully, as {burnt[0]}")
