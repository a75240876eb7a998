"""The worker processes of a campaign: some groups of a supervisor and its children, always that many."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from itertools import chain
from typing import TYPE_CHECKING

from tests.worker.conftest import WorkerProcess

from . import journal
from .journal import ChildName

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Any

    from tests.servers import Server

SETTINGS = "tests.lab.campaign.project.settings"
READY_WITHIN = 60.0
"""Seconds: a machine that is busy elsewhere starts processes slowly, which is no fault of theirs."""
LOOK_EVERY = 0.02
"""Seconds between two looks at a health file."""
SLOTS = 6
FORKED = 3
"""Processes of a group."""
SPAWNED = 1
"""Processes of a group whose processes are spawned: each costs a start of half a second of one core."""
SPAWNED_EVERY = 6
"""One group in this number spawns its processes, beginning with the first group."""


def signal_all(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


class Fleet:
    """Starts, replaces and stops groups; knows which child belongs to whom. Its methods may be called from any thread.

    Args:
        environment: what the workers need to know beside the server. urls: of each group's server. deliveries: how
            often a task may be handed out by groups that are started from now on; can be changed.
    """

    def __init__(
        self, server: Server, directory: Path, environment: dict[str, str], urls: list[str], deliveries: int
    ) -> None:
        self._server, self._directory, self._environment, self._urls = server, directory, environment, urls
        self.deliveries = deliveries
        self._lock = threading.Lock()
        self._started = 0
        self.all: list[WorkerProcess] = []
        """Every group that ever was."""
        self.groups: list[WorkerProcess] = []
        self.killed: set[str] = set()
        """Workers' ids of children that were killed: it may take a moment until they are gone."""
        self._effects, self._over = directory / "effects", directory / "over"
        """Journals of children; of those that are gone in a place of their own: process ids come again."""
        self._processes: dict[int, int] = {}
        """Per group's process id, how many processes it has."""
        self.frozen: set[int] = set()
        """Process ids of supervisors that are not to be killed now."""

    def start(self) -> None:
        """All at once; see `wait_ready`."""
        self.groups = [self.spawn(index) for index in range(len(self._urls))]

    def wait_for(self, group: WorkerProcess) -> WorkerProcess:
        """Until its processes are ready, as its health file has it."""
        deadline = time.monotonic() + READY_WITHIN
        while self._ready(group) < self._processes[group.pid]:
            if time.monotonic() > deadline:
                raise TimeoutError(f"a worker was not ready within {READY_WITHIN:g} s:\n{group.log[-2000:]}")
            time.sleep(LOOK_EVERY)
        return group

    def _ready(self, group: WorkerProcess) -> int:
        return sum(process["ready"] and _lives(int(process["pid"])) for process in group.health().get("processes", ()))

    def spawn(self, index: int) -> WorkerProcess:
        with self._lock:
            is_spawned = self._started % SPAWNED_EVERY == 0
            self._started += 1
        processes = SPAWNED if is_spawned else FORKED
        # A popen in a thread other than the main one is fine: a worker does not die with its parent's threads.
        group = WorkerProcess(
            self._server,
            self._directory,
            *("--worker", f"group{index}", "--processes", str(processes), "--concurrency", str(SLOTS)),
            *("--start-method", "spawn" if is_spawned else "forkserver"),
            **{
                **self._environment,
                "DJANGO_SETTINGS_MODULE": SETTINGS,
                "CAMPAIGN_SERVER": self._urls[index],
                "FAIRQUE_QUEUE__MAX_DELIVERIES": str(self.deliveries),
            },
        )
        with self._lock:
            self.all.append(group)
            self._processes[group.pid] = processes
        return group

    def replace(self, index: int, group: WorkerProcess) -> None:
        self.groups[index] = group

    def known(self) -> list[ChildName]:
        """The living processes that have begun a task, by their worker's id."""
        with self._lock:
            living = []
            for path in self._effects.iterdir():
                child = ChildName.of(path)
                if child.worker not in self.killed and _lives(child.pid):
                    living.append(child)
                else:
                    path.rename(self._over / path.name)
        return sorted(living, key=lambda child: child.worker)

    def effects(self) -> Iterator[dict[str, Any]]:
        """Return the records that all tasks have written until now."""
        with self._lock:
            return chain(list(journal.read(self._effects)), journal.read(self._over))

    def is_spawned(self, child: ChildName) -> bool:
        return self._processes[child.supervisor] == SPAWNED

    def children(self) -> list[ChildName]:
        """Return the child processes of groups that live and are not frozen."""
        living = {group.pid for group in self.groups} - self.frozen
        return [child for child in self.known() if child.supervisor in living]

    def of(self, group: WorkerProcess) -> list[ChildName]:
        return [child for child in self.known() if child.supervisor == group.pid]

    def stop(self) -> list[int]:
        """Stop all groups with SIGTERM, like an operator, and return their exit codes."""
        for group in self.groups:
            group.send(signal.SIGTERM)
        return [group.wait(60) for group in self.groups]

    def close(self) -> None:
        for group in self.all:
            group.close()

    def count_in_logs(self, words: str) -> int:
        return sum(group.log.count(words) for group in self.all)

    def wait_ready(self) -> None:
        for group in list(self.groups):
            self.wait_for(group)


def _lives(pid: int) -> bool:
    """Not a zombie either."""
    try:
        with open(f"/proc/{pid}/stat") as stat:  # noqa: PTH123 - a hundred times a second
            return stat.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
