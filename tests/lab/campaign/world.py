"""The processes of a campaign: a server, a proxy before it, producers and workers; and the records about them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

from django_fairque.engine.model.errors import FairQueueError
from django_fairque.engine.model.lease import LEASE_FIELDS, Lease
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.queue.queue import FairQueue
from tests.servers import Server
from tests.worker.conftest import ROOT

from . import clock
from .disk import Disk
from .fleet import SETTINGS, Fleet
from .journal import Journal, intent
from .phases import Phases
from .proxy import Proxy
from .recovery import Recoveries

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from redis import Redis
    from typing_extensions import Self

    from django_fairque.engine.model.task import Task

PREFIX = "fq:{default:0}:"
GROUPS = 6
"""Two that are frozen, two whose supervisors are killed, and two that are there meanwhile; the last one is behind the proxy."""
DELIVERIES = QueueConfig().max_deliveries
"""The most deliveries of a poisoned task: the default of a project."""
MANY_DELIVERIES = 20
"""So many, while processes are killed, that a task which takes longer than they live is not taken for a poisoned one."""
PRODUCERS = 3
MEANS = 150
"""Tasks a second, all producers together."""


class World:
    """Everything at work from `__enter__` on. Start it in the main thread: the server dies with the one that started it.

    Args:
        drain_within: seconds in which all that was pushed must end after the last fault. Tasks that were running when their
            process was killed run alone, one at a time in each worker, so hundreds of kills leave minutes of work.
    """

    def __init__(
        self,
        seed: int,
        *,
        lease: float,
        faults: Sequence[str],
        rate: float,
        lua: Path | None = None,
        every_long: float = 2.0,
        drain_within: float = 600.0,
        keep: bool = False,
    ) -> None:
        self.seed, self.lease, self.rate, self.drain_within, self._keep = seed, lease, rate, drain_within, keep
        self._begins_with_poison = "poison" in faults
        self._stack = ExitStack()
        self.directory = Path(tempfile.mkdtemp(prefix="fqc-", dir="/tmp"))
        for part in ("effects", "over", "history"):
            (self.directory / part).mkdir()
        self.disk = Disk.make(self.directory / "disk") if "disk" in faults else None
        self.clock = clock.Clock.make(self.directory / "clock") if "clock" in faults else None
        self._environment = {
            "CAMPAIGN_DIRECTORY": str(self.directory),
            "CAMPAIGN_LEASE": str(lease),
            "CAMPAIGN_EVERY_LONG": str(every_long),
            **({"CAMPAIGN_LUA": str(lua)} if lua else {}),
        }
        self.notes: list[str] = []
        """Notes for the reader, for example about faults that are not possible on this machine."""
        if "disk" in faults and self.disk is None:
            self.notes.append("SKIPPED disk: only root on Linux can mount a small disk to be filled")
        if "clock" in faults and self.clock is None:
            self.notes.append("SKIPPED clock: libfaketime is not installed (Debian: apt install libfaketime)")
        self.aim = threading.Lock()
        """Held from choosing a victim until it is dead or frozen: two faults never want the same."""
        self.violations: list[str] = []
        """Violations that the faults themselves found."""
        self.figures: dict[str, Any] = {}
        self.phase = Phases()
        self.stale_refused = 0
        self._producers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        try:
            with self.phase("start"):
                self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        # always: with everysec what is acknowledged while a sync is under way is written later, and a kill loses it.
        options = ["--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "noeviction"]
        options += ["--auto-aof-rewrite-percentage", "0"]  # `server_faults.kill_server` asks for it
        environment = self.clock.environment if self.clock else {}
        if self.disk:
            self._stack.callback(self.disk.close)
        directory = self.disk.mount() if self.disk else None
        self.server = Server(*options, directory=directory, environment=environment)
        self._stack.enter_context(self.server)
        self.client: Redis = self._stack.enter_context(self.server.client(socket_timeout=60))
        self.queue = FairQueue(self.client, config=QueueConfig(max_deliveries=MANY_DELIVERIES))
        self.proxy = Proxy(str(self.directory / "p.sock"), self.server.socket)
        self._stack.callback(self.proxy.close)
        proxied = f"unix://{self.proxy.path}?db=0"
        urls = [*[self.server.url] * (GROUPS - 1), proxied]
        deliveries = DELIVERIES if self._begins_with_poison else MANY_DELIVERIES
        self.fleet = Fleet(self.server, self.directory, self._environment, urls, deliveries)
        self._stack.callback(self.fleet.close)
        self.recoveries = Recoveries(self._stack.enter_context(self.server.client(socket_timeout=60)), PREFIX)
        self.recoveries.start()
        self._stack.callback(self.recoveries.end)
        self.journal = Journal(self.directory / "history" / "campaign")
        self.fleet.start()
        for index in range(PRODUCERS):
            self._start_producer(index, proxied if index == 0 else self.server.url)
        self.fleet.wait_ready()
        history = self.directory / "history"
        self.wait(lambda: len(list(history.iterdir())) > PRODUCERS, 60, "producers did not begin")

    def __exit__(self, *_: object) -> None:
        for producer in self._producers:
            producer.kill()
            producer.wait()
        self._stack.close()
        if self._keep:
            print(f"journals and logs are in {self.directory}")
        else:
            shutil.rmtree(self.directory)

    def _start_producer(self, index: int, url: str) -> None:
        self._producers.append(
            subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.lab.campaign.producer"),
                    *(f"producer{index}", str(self.seed), str(self.rate / PRODUCERS)),
                ],
                cwd=ROOT,
                env={
                    **os.environ,
                    "DJANGO_SETTINGS_MODULE": SETTINGS,
                    "CAMPAIGN_SERVER": url,
                    **self._environment,
                },
                stdin=subprocess.DEVNULL,
            )
        )

    def stop_producers(self) -> None:
        for producer in self._producers:
            producer.send_signal(signal.SIGTERM)
        codes = [producer.wait(60) for producer in self._producers]
        if any(codes):
            self.violations.append(f"producers ended with {codes}, expected 0")

    # --- reading what may be away ---

    def held(self, workers: Sequence[str]) -> dict[str, list[tuple[str, int]]] | None:
        """The leases of those workers that have any; None when the server is away."""
        try:
            with self.client.pipeline(transaction=False) as pipe:
                for worker in workers:
                    pipe.smembers(f"{PREFIX}leases:{worker}")
                members = pipe.execute()
                ids = sorted(task_id for some in members for task_id in some)
                for task_id in ids:
                    pipe.hget(f"{PREFIX}task:{task_id.decode()}", "token")
                tokens = dict(zip(ids, pipe.execute(), strict=True))
        except RedisError:
            return None
        return {
            worker: [(task_id.decode(), int(tokens[task_id] or 0)) for task_id in some]
            for worker, some in zip(workers, members, strict=True)
            if some
        }

    def counter(self, name: str) -> int:
        return int(self.client.hget(f"{PREFIX}stats", name) or 0)

    def speak_for(self, workers: dict[str, list[tuple[str, int]]]) -> None:
        """Report the outcomes of leases that are over. Any that is believed is found by the checker: see its result.

        They end when somebody looks at them, which nobody can while the server is away: what is still held is not over.
        """
        still = self.held(list(workers))
        if still is None:
            return
        outcomes = [
            Outcome.finish(_lease(task_id, token, worker), {"token": token, "stale": True})
            for worker, some in workers.items()
            for task_id, token in some
            if (task_id, token) not in still.get(worker, ())
        ]
        with suppress(FairQueueError):  # the server is away
            for outcome in outcomes:
                self.stale_refused += self.queue.settle([outcome]).statuses.count("stale")

    def tell_push(self, tasks: Sequence[Task]) -> None:
        """Write down what this process is about to push."""
        self.journal.write(**intent(tasks))

    def wait(self, condition: Callable[[], Any], seconds: float, otherwise: str, *, look_every: float = 0.01) -> bool:
        """Whether it happened in time; if not that is a violation."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                if condition():
                    return True
            except (RedisError, FairQueueError):
                time.sleep(0.05)
            if time.monotonic() > deadline:
                self.violations.append(f"{otherwise} within {seconds:g} s")
                return False
            time.sleep(look_every)


def _lease(task_id: str, token: int, worker: str) -> Lease:
    known = {"id": task_id.encode(), "token": b"%d" % token, "lease": b"0"}
    return Lease([known.get(field, b"") for field in LEASE_FIELDS], worker, 0.0)
