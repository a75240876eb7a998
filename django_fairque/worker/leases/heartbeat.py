"""The content of heartbeats. A heartbeat sends the worker's record, and returns the operator's commands and signs of
lost data.
"""

from __future__ import annotations

import json
import os
import platform
import socket
import time
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from django_fairque.conf import get_config
from django_fairque.conf.current import signing_mode
from django_fairque.conf.sections import digest_of_code
from django_fairque.engine.inspection.pages import SIGNING_KEYS_FIELD, UNKNOWN_TASKS_FIELD
from django_fairque.engine.inspection.worker_activity import (
    ACTIVITY_FIELD,
    DEATHS_FIELD,
    SENT_FIELD,
    UNRESPONSIVE_FIELD,
    encode_deaths,
)
from django_fairque.engine.model.priority import Priority
from django_fairque.engine.model.signature import fingerprint
from django_fairque.engine.statistics.deployments import CODE_VERSION_FIELD
from django_fairque.engine.statistics.health import Alert, AlertKind
from django_fairque.tasks.signing import project_keys
from django_fairque.version import __version__
from django_fairque.worker.common.limits import resident_mb
from django_fairque.worker.common.log import logger
from django_fairque.worker.common.options import WorkerOptions, describe_users

if TYPE_CHECKING:
    from django_fairque.engine.inspection.worker_activity import ProcessDeath
    from django_fairque.engine.leasing.lease_ops import Heartbeat, WorkerCommand

_process_started_at = time.time()

MAX_UNKNOWN_TASK_NAMES = 20
"""Maximum number of names in a worker's record of tasks for which it has no function."""


def worker_status(*, is_draining: bool, is_stopping: bool) -> str:
    return "stopping" if is_stopping else "draining" if is_draining else "working"


def worker_info(
    options: WorkerOptions,
    *,
    done: int,
    running: int,
    status: str,
    pid: int | None = None,
    started: float | None = None,
    unknown_tasks: Sequence[str] | None = None,
    blocked_by: str | None = None,
    unresponsive_since: float | None = None,
    activity: bytes = b"",
    deaths: Collection[ProcessDeath] = (),
) -> dict[str, str]:
    """Return the fields of a process's heartbeat, all as text. ``status`` is working, draining or stopping.
    ``activity`` is the process's report about its slots, and ``deaths`` lists the deaths of processes of its worker.
    """
    # A field that is not sent keeps its old value in the record, so an empty list or text must be sent to replace the
    # value.
    blocked = {} if blocked_by is None else {"blocked_by": blocked_by}
    if unresponsive_since is not None:
        blocked[UNRESPONSIVE_FIELD] = f"{unresponsive_since:.3f}" if unresponsive_since else ""
    reported = {ACTIVITY_FIELD: activity.decode(errors="replace"), SENT_FIELD: f"{time.time():.3f}"} if activity else {}
    died = {DEATHS_FIELD: encode_deaths(deaths)} if deaths else {}
    unknown = {} if unknown_tasks is None else {UNKNOWN_TASKS_FIELD: json.dumps(unknown_tasks[:MAX_UNKNOWN_TASK_NAMES])}
    return {
        "host": socket.gethostname(),
        "pid": str(pid or os.getpid()),
        "started": f"{started or _process_started_at:.3f}",
        "queues": ",".join(options.queues),
        "users": describe_users(options.users),
        "steal": describe_users(options.steal),
        "concurrency": str(options.concurrency),
        "reserve": ",".join(f"{lane}={slots}" for lane, slots in options.reserve.items() if slots),
        "status": status,
        "lease": f"{options.lease_seconds:g}",
        "running": str(running),
        "done": str(done),
        "memory_mb": f"{resident_mb(pid):.0f}",
        "python": platform.python_version(),
        "version": __version__,
        SIGNING_KEYS_FIELD: _key_fingerprints(),
        CODE_VERSION_FIELD: _code_version(),
        **unknown,
        **blocked,
        **reported,
        **died,
    }


def _code_version() -> str:
    config = get_config()
    plans = config.queue.plans
    return plans.version if plans else config.code_version or digest_of_code({})


def _key_fingerprints() -> str:
    return "" if signing_mode() == "off" else ",".join(map(fingerprint, project_keys()))


def worker_figures(processes: Sequence[Mapping[str, Any]], slots: int, *, is_healthy: bool) -> dict[str, float]:
    """Return a worker's figures: the number of ready processes, the number of tasks that they can run and do run, the
    memory in bytes, and 1 if the worker is healthy, else 0.
    """
    ready = [process for process in processes if process["ready"]]
    return {
        "processes": len(ready),
        "slots": slots * len(ready),
        "slots_busy": sum(int(process["running"]) for process in ready),
        "memory_bytes": sum(float(process["memory_mb"]) for process in processes) * 2**20,
        "healthy": float(is_healthy),
    }


class ServerEpochs:
    """Compares each heartbeat of a queue with the one before, to notice a changed server or lost data. For use by one
    thread.
    """

    def __init__(self) -> None:
        self._last_epochs: dict[str, tuple[float, int]] = {}
        self._servers: dict[str, str] = {}

    def has_changed_server(self, queue: str, heartbeat: Heartbeat) -> bool:
        """Return whether another server answers than at the last heartbeat, or the same server after a restart. The new
        server may lack data that the old one confirmed: it could still list leases that were already settled, and they
        would be renewed forever.
        """
        before, self._servers[queue] = self._servers.get(queue, heartbeat.server), heartbeat.server
        return before != heartbeat.server

    def find_loss(self, queue: str, heartbeat: Heartbeat) -> Alert | None:
        """Return an alert if data was lost since the last heartbeat. Nearly always None, because no data is lost."""
        (epoch, token), now = self._last_epochs.get(queue, (heartbeat.epoch, 0)), (heartbeat.epoch, heartbeat.token)
        self._last_epochs[queue] = now
        if heartbeat.epoch == epoch and heartbeat.token >= token:
            return None
        kind: AlertKind = "emptied" if heartbeat.epoch != epoch else "went_back"
        lost = token - heartbeat.token if kind == "went_back" else 0
        alert = Alert(kind, heartbeat.at, queue, "", "", "", Priority.NORMAL, leases=lost)
        logger.critical("queue %s: %s", queue, alert)
        return alert


DRAIN_COMMAND, STOP_COMMAND = "drain", "stop"
"""Two of the three `WORKER_COMMANDS`. The third command makes a worker resume its work."""


class OperatorCommands:
    """Recognizes new commands of an operator. A command in the reply to the first heartbeat is old: it was for an
    earlier worker with the same id, because the server did not know this worker before.
    """

    def __init__(self) -> None:
        self._last_times: dict[str, float] = {}
        """The time at which the last command was sent, by queue."""

    def new_command(self, queue: str, command: WorkerCommand | None) -> str:
        """Return the command if it is new, else an empty text."""
        at = command.at if command else 0.0
        before = self._last_times.get(queue)
        self._last_times[queue] = at
        return command.kind if command and before is not None and at > before else ""
