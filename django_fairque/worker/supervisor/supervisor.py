"""The supervisor: the process that an operator starts. The supervisor runs no task, so no task can block it.

The supervisor starts worker processes through `ProcessFactory` (never as forks of itself once it has threads and connections),
renews their leases with `LeaseRenewal`, enforces `ChildLimits`, gives back the leases of processes that died, and stops processes
gracefully.

With ``reload`` the supervisor replaces its children when the project's code changes. The supervisor itself does not
restart, because it runs none of that code. After a change of the worker's options, restart the worker by hand.
"""

from __future__ import annotations

import json
import math
import os
import platform
import signal
import sys
import sysconfig
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.conf import settings
from django.utils import autoreload

from django_fairque.conf import get_config, get_queue
from django_fairque.early_signals import exit_early, received
from django_fairque.engine.inspection.worker_activity import MAX_REPORTED_DEATHS, EndReason, ProcessDeath
from django_fairque.engine.model.errors import ConfigurationError, RedisConnectionError, UnsupportedServerError
from django_fairque.engine.model.lease import LeaseKey
from django_fairque.engine.model.outcome import Outcome
from django_fairque.tasks import registry
from django_fairque.tasks.schedules import DeclaredSchedules
from django_fairque.version import __version__
from django_fairque.worker.common.log import logger, printable
from django_fairque.worker.common.options import WorkerOptions, describe_users
from django_fairque.worker.common.status_board import partial_lease
from django_fairque.worker.leases.heartbeat import DRAIN_COMMAND, STOP_COMMAND, worker_figures
from django_fairque.worker.leases.lease_renewal import LeaseRenewal, LeaseReturn
from django_fairque.worker.leases.outage import Outages, get_startup_timeout
from django_fairque.worker.reporting.signal_thread import MAX_WAITING_SIGNALS
from django_fairque.worker.supervisor import child_main
from django_fairque.worker.supervisor.child_process import (
    ChildLimits,
    ChildProcess,
    StalledProcesses,
    describe_death,
    leases_to_return,
)
from django_fairque.worker.supervisor.messages import Done, LoopChanged, Ready, Retiring, Unfit, UnknownNames
from django_fairque.worker.supervisor.process_factory import ForkServerGoneError, ProcessFactory
from django_fairque.worker.supervisor.separate_tasks import (
    SUSPECT_RETURN_SECONDS,
    AloneReason,
    SeparateTask,
    SeparateTasks,
)

if TYPE_CHECKING:
    from os import PathLike

    from django_fairque.worker.reporting.signal_thread import Announcement


HEALTH_WRITE_SECONDS = 1.0
"""Seconds between two writes of the health file. If the file is older than ten times this, the worker hangs."""
MAX_HEALTH_FILE_BYTES = 10_000_000
"""Maximum bytes of an existing health file that are read to check whether a worker wrote the file."""


class HealthFile:
    """A JSON object with ``status`` ("healthy" or "unhealthy") and ``reasons``. The file is replaced as a whole each second.

    If the reasons or the number of ready processes change, the file is written at once. Otherwise a deployment that
    waits for the start of a worker would wait half a second longer on average.
    """

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self._path = None if path is None else Path(path)
        self._due = 0.0
        self._last_content: object = None

    def check(self) -> None:
        """Raise `ConfigurationError` if the health file can't be written, or if another program wrote the existing
        file.
        """
        if self._path is None:
            return
        if self._path.exists() and not self._path.is_dir() and self._read() is None:
            raise ConfigurationError(
                f"--health-file {self._path} exists and is not a worker's health file, so it is not overwritten: delete it, or "
                "name another path"
            )
        try:
            self._write({"status": "starting", "reasons": []})
        except FileNotFoundError:
            directory = self._path.parent
            raise ConfigurationError(
                f"--health-file {self._path}: the directory {directory} is missing; make it, or name another path"
            ) from None
        except OSError as error:
            raise ConfigurationError(
                f"--health-file {self._path} can't be written: {error.strerror or error}"
            ) from error

    def update(self, now: float, reasons: list[str], facts: dict[str, Any]) -> None:
        """Write the file if a second has passed, or if its content has changed."""
        content = reasons, [process["pid"] for process in facts.get("processes", ()) if process["ready"]]
        if self._path is None or (now < self._due and content == self._last_content):
            return
        self._due, self._last_content = now + HEALTH_WRITE_SECONDS, content
        with suppress(OSError):  # if the disk is full, the file becomes old, which shows the problem
            self._write({"status": "unhealthy" if reasons else "healthy", "reasons": reasons, **facts})

    def remove(self) -> None:
        """Delete the file, unless another worker has replaced it."""
        if self._path is not None and (self._read() or {}).get("pid") == os.getpid():
            self._path.unlink(missing_ok=True)

    def _read(self) -> dict[str, Any] | None:
        """Return the content of the health file, or ``{}`` if the file is empty. Return None if no worker wrote the
        file.
        """
        assert self._path is not None  # noqa: S101 - the callers looked
        try:
            if not self._path.is_file():
                return None  # not a regular file: reading a device or a pipe could block
            with self._path.open("rb") as file:
                text = file.read(MAX_HEALTH_FILE_BYTES)
            content = json.loads(text) if text else {}
        except (OSError, ValueError):
            return None
        is_ours = isinstance(content, dict) and (not content or {"time", "pid", "status", "reasons"} <= content.keys())
        return content if is_ours else None

    def _write(self, content: dict[str, Any]) -> None:
        assert self._path is not None  # noqa: S101 - the callers looked
        temporary = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        temporary.unlink(missing_ok=True)  # a worker that was killed may have left this file
        # If other users can write to the directory, they could place a link of this name there. The link must not lead
        # to another file.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with os.fdopen(os.open(temporary, flags, 0o666), "w", encoding="utf-8") as file:
            file.write(json.dumps({"time": time.time(), "pid": os.getpid(), **content}))
        try:
            temporary.replace(self._path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise


STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
STOP_AT_ONCE_SIGNALS = (
    signal.SIGQUIT,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGVTALRM,
    signal.SIGPROF,
    signal.SIGXCPU,
)
"""Signals that end a process by default. A worker that gets one gives back its running tasks and ends at once."""


class StopSignals:
    """Counts stop signals, and makes `fileno` readable when a signal comes. Create this object in the main thread,
    because it installs signal handlers.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self.stop_count = 0
        """The number of stop signals that the process has received."""
        self.dump_count = 0
        """The number of received signals that request the stacks of the threads."""

    def fileno(self) -> int:
        return self._read

    def install_handlers(self) -> None:
        for number in STOP_SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup has made the process ignore SIGHUP
                signal.signal(number, self._on_signal)
        for number in STOP_AT_ONCE_SIGNALS:
            if signal.getsignal(number) in (signal.SIG_DFL, exit_early):
                signal.signal(number, self._on_signal)
        if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
            signal.signal(signal.SIGUSR1, self._on_signal)
        self.stop_count += len(received)

    def _on_signal(self, number: int, _: object) -> None:
        if number == signal.SIGUSR1:
            self.dump_count += 1
        else:
            self.stop_count += 2 if number in STOP_AT_ONCE_SIGNALS else 1
        self.wake()

    def wake(self) -> None:
        with suppress(BlockingIOError):  # if the pipe is full, the supervisor wakes in any case
            os.write(self._write, b".")

    def clear(self) -> None:
        with suppress(BlockingIOError):  # the pipe is empty, because another event woke the supervisor
            os.read(self._read, 4096)


def project_packages() -> set[Path]:
    """Return the folders with the project's code: packages next to manage.py, and apps that are not in the folder of
    installed packages.
    """
    neighbors = (file.parent for file in Path(sys.path[0] or ".").glob("*/__init__.py"))
    installed = {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib", "stdlib")}
    folders = {folder.resolve() for folder in (*neighbors, *(Path(app.path) for app in apps.get_app_configs()))}
    return {folder for folder in folders if installed.isdisjoint(folder.parents)}


class Reloader(autoreload.StatReloader):
    """A variant of Django's reloader. When code has changed, it sets `has_changed` and calls ``wake``, instead of
    ending the process. The supervisor resets `has_changed`.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        super().__init__()
        self._wake = wake
        self.has_changed = False

    def watch(self) -> None:
        """Check the project's files for changes. Runs in a separate thread."""
        self.watch_project()
        autoreload.autoreload_started.send(sender=self)
        logger.info("watching the code for changes")
        for _ in self.tick():  # each step of Django's generator checks the files and sleeps for a second
            pass

    def watch_project(self) -> None:
        """Watch all modules of the project. The supervisor has not imported all of them, because some modules are only
        imported in the processes when a task runs.
        """
        for folder in project_packages():
            self.watch_dir(folder, "**/*.py")

    def notify_file_changed(self, path: str | PathLike[str]) -> None:
        results = autoreload.file_changed.send(sender=self, file_path=path)
        # Django's receivers for templates and translations had the first choice
        if not any(result for _, result in results):
            logger.info("%s changed", path)
            if Path(path) == Path(getattr(sys.modules.get(settings.SETTINGS_MODULE), "__file__", None) or ""):
                logger.warning(
                    "settings have changed; restart the worker if FAIRQUE is among the changes, such as SCHEDULES"
                )
            self.has_changed = True
            self._wake()


MAX_LOGGED_TASK_NAMES = 20
"""Maximum number of task names in the log line at the start of a worker."""
NO_TASKS = "none, in the modules tasks of the apps in INSTALLED_APPS"
STARTUP_RETRY_SECONDS = 0.5
"""Seconds for which calls at the start are repeated that all other work waits for."""
SCHEDULE_SYNC_PAUSE_SECONDS = 1.0
SCHEDULE_VERSION_PAUSE_SECONDS = 5.0
"""Seconds between two reports of the version of the declared schedules."""
MAX_SCHEDULE_SYNC_PAUSE_SECONDS = 15.0
"""Maximum seconds between two attempts to declare schedules while the server can't be reached. The pause doubles up to this
value, because an attempt that fails halfway has already called the project's functions that determine users of tasks."""


SUPERVISOR_TICK_SECONDS = 0.1
"""Seconds between two checks of the limits. Limits are enforced with this precision."""
MAX_RENEWAL_SILENCE_SECONDS = 6.0
"""Seconds for which lease renewal may have no success, in addition to its longest regular pause, before the worker is
unhealthy."""
SCHEDULES_LEAVE_SECONDS = 1.0
"""Maximum seconds for the last report of the version of the declared schedules."""
GIVE_BACK_SECONDS = 5.0
"""Maximum seconds for giving back all leases at the end. After that, the remaining leases expire."""
OUTAGE_GIVE_BACK_SECONDS = 2.0
"""Maximum seconds for giving back all leases if the server has not answered for a while: enough for one attempt."""
CHILD_EXIT_SECONDS = 5.0
"""Seconds that a child has for its exit handlers and for threads that its tasks have started."""
MAX_FAILED_STARTS = 3
"""Number of children in a row that could not start, after which the worker gives up. Only counts while no child has
started yet."""
MAX_START_BACKOFF_SECONDS = 30.0


class Supervisor:
    """Runs until it gets a stop signal (SIGTERM or SIGINT) or all tasks of a burst are done. A second signal ends it at
    once.

    Args:
        health_file: see `HealthFile`. reload: replace the children when the project's code changes.
        copied: whether this process may be copied for a fork server. In the copy and its children, the constructor
            raises `SystemExit`.
    """

    def __init__(
        self, options: WorkerOptions, *, health_file: str | None = None, reload: bool = False, copied: bool = False
    ) -> None:
        if not os.environ.get("DJANGO_SETTINGS_MODULE"):
            raise ConfigurationError(
                "DJANGO_SETTINGS_MODULE is not set: worker processes import the settings by name, so they must have one"
            )
        registry.refuse_mistakes()
        self.options = options
        if copied:
            child_main.close_project_connections()  # the project's code may have opened connections at import
        self._queues = [get_queue(name) for name in options.queues]
        self._shards = [shard for queue in self._queues for shard in queue.shards]
        self._process_factory = ProcessFactory(options, len(self._shards), copied=copied)
        self._startup_timeout = get_startup_timeout(options, self._queues)
        self._outages = Outages(self._shards, self._startup_timeout)
        self._announcements: deque[Announcement] = deque(maxlen=MAX_WAITING_SIGNALS)
        """Signals that a child process must send as soon as one is ready."""
        self._commands: deque[str] = deque()
        on_news = self._announcements.extend, self._receive_command, lambda: not self.is_stopping
        self._lease_renewal = LeaseRenewal(self._queues, options, self._outages, *on_news)
        self._child_limits = ChildLimits(options, self._outages, self._lease_renewal.renew_now)
        self._leaving = threading.Event()
        """Set when this worker begins to stop, so that its declared schedules no longer take precedence."""
        self._declared_schedules = DeclaredSchedules(options.worker_id, STARTUP_RETRY_SECONDS)
        self._schedules_thread: threading.Thread | None = None
        self._stop_signals = StopSignals()
        self._health_file = HealthFile(health_file)
        self._reloader = Reloader(self._stop_signals.wake) if reload else None
        self._children: list[ChildProcess] = []
        self._separate = SeparateTasks(options.processes * options.concurrency)
        self._refused_separate: list[tuple[SeparateTask, float]] = []
        """Tasks that got no separate process for lack of room, with the seconds for which they are given back."""
        self._message_handlers: dict[type, Callable[[ChildProcess, Any], None]] = {
            Ready: self._record_ready,
            SeparateTask: self._take_separate_task,
            Retiring: self._replace_retiring,
            Unfit: self._replace_retiring,
            LoopChanged: self._record_blocked_loop,
            UnknownNames: self._report_unknown_tasks,
            Done: self._mark_done,
        }
        labels = [shard.display_name for shard in self._shards]
        self._stalled_processes = StalledProcesses(labels, self._lease_renewal.give_back, self._separate.waiting_tokens)
        self._start_due = dict.fromkeys(range(options.processes), 0.0)
        """The time at which to start a process, by the index of each process that is missing."""
        self._unknown_tasks: dict[str, list[str]] = {}
        """Names of tasks for which a process received no function lately, by the process's worker id."""
        self._deaths: deque[ProcessDeath] = deque(maxlen=MAX_REPORTED_DEATHS)
        """The last deaths of processes. All children report these deaths, so that a report is not lost when the next
        child dies."""
        self._incarnation = 0
        self._failures = 0
        self._unfit = 0
        """The number of children in a row that could run no task."""
        self._was_ready = False
        self._stops_seen = 0
        self._dumps_seen = 0
        self._is_draining = False
        self._gave_up = False
        self.figures = worker_figures([], options.concurrency, is_healthy=False)
        """The worker's figures after the last turn of the main loop. The object is replaced as a whole, so any thread
        may read it."""

    def run(self) -> int:
        """Run the worker, and return its exit code: 0 if all tasks were settled or given back."""
        self._health_file.check()
        self._stop_signals.install_handlers()
        try:
            self._begin()
            while self._children or self._start_due:
                self._run_once()
        finally:
            self._leaving.set()
            self._kill_all(EndReason.WORKER_STOPPED)
            self._process_factory.close()
            settled = self._lease_renewal.finish(
                OUTAGE_GIVE_BACK_SECONDS if self._outages.is_ongoing else GIVE_BACK_SECONDS
            )
            if self._schedules_thread is not None:
                self._schedules_thread.join(SCHEDULES_LEAVE_SECONDS)
            self._health_file.remove()
        if not settled and self._outages.has_answered:
            logger.error(
                "not everything could be given back; it will be when the leases end (%g s)", self.options.lease_seconds
            )
        logger.info("worker %s has stopped", self.options.worker_id)
        return 0 if settled and not self._gave_up else 1

    def _begin(self) -> None:
        """Start to handle signals and to report health. Do not wait for the server here, because it may never
        answer.
        """
        options = self.options
        logger.info(
            "worker %s: django_fairque %s, Python %s, %s; queues %s; users %s%s; processes %d, concurrency %d",
            *(options.worker_id, __version__, platform.python_version(), self._server(), ", ".join(options.queues)),
            *(
                describe_users(options.users),
                f" (steals from {describe_users(options.steal)})" if options.steal else "",
            ),
            *(options.processes, options.concurrency),
        )
        names = registry.names()
        more = f" and {len(names) - MAX_LOGGED_TASK_NAMES:,} more" if len(names) > MAX_LOGGED_TASK_NAMES else ""
        logger.info(
            "worker %s: tasks found (%d): %s%s; reload when code changes: %s",
            *(
                options.worker_id,
                len(names),
                ", ".join(map(printable, names[:MAX_LOGGED_TASK_NAMES])) or NO_TASKS,
                more,
            ),
            "off" if self._reloader is None else "on",
        )
        if others := sorted(set(get_config().queues) - set(options.queues)):
            text = "worker %s: does not serve queue %s, which the settings declare: another worker must (--queue)"
            logger.info(text, options.worker_id, ", ".join(others))
        # The first attempt to declare the schedules is made here, so that a burst finds their tasks.
        is_declared = not self._outages.is_ongoing and self._declared_schedules.update_or_log()
        self._schedules_thread = threading.Thread(
            target=self._sync_declared_schedules, args=(is_declared,), name="fairque-schedules", daemon=True
        )
        self._schedules_thread.start()
        self._lease_renewal.start()
        if self._reloader is not None:
            threading.Thread(target=self._reloader.watch, name="fairque-reloader", daemon=True).start()
        self._handle_signals()

    def _sync_declared_schedules(self, is_declared: bool) -> None:
        """Report the version of the declared schedules regularly until this worker stops, because the version that
        takes precedence may change. Runs in a separate thread.
        """
        pause = SCHEDULE_SYNC_PAUSE_SECONDS
        while not self._leaving.wait(SCHEDULE_VERSION_PAUSE_SECONDS if is_declared else pause):
            pause = SCHEDULE_SYNC_PAUSE_SECONDS if is_declared else min(MAX_SCHEDULE_SYNC_PAUSE_SECONDS, 2 * pause)
            is_declared = self._declared_schedules.update_or_log()
        if is_declared:
            self._declared_schedules.leave()

    def close(self) -> None:
        """End the threads and processes that the constructor started. Only for a supervisor whose `run` is never
        called.
        """
        self._process_factory.close()

    # --- one turn of the main loop ---

    def _run_once(self) -> None:
        self._start_children()
        waitable: list[Any] = [self._stop_signals, *self._process_factory.servers]
        for child in self._children:
            waitable += [child.process.sentinel, child.pipe]
        wait(waitable, SUPERVISOR_TICK_SECONDS)
        self._stop_signals.clear()
        for child in list(self._children):
            if child in self._children:  # the child may have been removed together with another one
                self._read_messages(child)
                if child.exitcode is not None:
                    self._remove_child(child)
        if self._process_factory.read_messages() and not self.is_stopping:
            later = self._next_start_after_failure()
            self._start_due = dict.fromkeys(self._start_due, later)
        self._execute_commands()
        self._handle_signals()
        if not self.is_stopping and (error := self._outages.startup_error):
            logger.error(
                "%s; giving up: it has not answered once in %g s (REQUEST_TIMEOUT)", error, self._startup_timeout
            )
            self._give_up()
        if self._reloader is not None and self._reloader.has_changed and not self.is_stopping:
            self._reloader.has_changed = False
            self._replace_all("the code has changed")
        self._child_limits.enforce(self._children)
        self._stalled_processes.update(self._children, monotonic(), self._outages.unreachable_shards())
        self._forward_announcements()
        for child in self._children:
            child.flush()
        self._report_health()

    @property
    def is_stopping(self) -> bool:
        return self._stops_seen > 0 or self._gave_up

    def _read_messages(self, child: ChildProcess) -> None:
        for message in child.messages():
            self._message_handlers[type(message)](child, message)
        refused, self._refused_separate = self._refused_separate, []
        self._give_back_separate(refused)

    def _record_ready(self, child: ChildProcess, _: Ready) -> None:
        child.is_ready = self._was_ready = True
        self._failures = 0

    def _take_separate_task(self, child: ChildProcess, task: SeparateTask) -> None:
        task = task._replace(fetched_by=child.worker_id)
        delay = 0.0 if self.is_stopping or self._is_draining else self._separate.add(task, monotonic())
        if delay is not None:
            self._refused_separate.append((task, delay))

    def _replace_retiring(self, child: ChildProcess, message: Retiring | Unfit) -> None:
        if child.is_stopping:
            return
        child.is_stopping = True
        self._unfit = self._unfit + 1 if isinstance(message, Unfit) else 0
        if not self.is_stopping:
            self._start_due[child.index] = next_start_time(self._unfit)

    def _record_blocked_loop(self, child: ChildProcess, message: LoopChanged) -> None:
        child.blocked = message.blocked
        child.blocked_by = "" if child.blocked is None else child.blocked.task or "an unknown task"
        self._lease_renewal.renew_now(child.worker_id)

    def _forward_announcements(self) -> None:
        """Send announcements to a child that is not stopping. Use a stopping child only if no replacement will
        start.
        """
        ready = (child for child in self._children if child.is_ready and child.task is None)
        child = next((child for child in ready if self.is_stopping or not child.is_stopping), None)
        if self._announcements and child is not None:
            child.announce([self._announcements.popleft() for _ in range(len(self._announcements))])

    def _report_unknown_tasks(self, child: ChildProcess, message: UnknownNames) -> None:
        """Set the same unknown task names for all processes: all have the same code, although only one of them received
        such a task.
        """
        self._unknown_tasks[child.worker_id] = message.names
        together = sorted({name for names in self._unknown_tasks.values() for name in names})
        for sibling in self._children:
            if not sibling.is_stopping:
                sibling.unknown_tasks = together
                self._lease_renewal.renew_now(sibling.worker_id)

    def _mark_done(self, child: ChildProcess, _: Done) -> None:
        """Record that the child has settled all its tasks. Replace the child if the supervisor did not stop it."""
        if not (child.is_stopping or self.is_stopping or self.options.burst or child.task is not None):
            self._start_due[child.index] = 0.0
        child.is_stopping = child.is_done = True
        child.deadline = min(child.deadline or math.inf, monotonic() + CHILD_EXIT_SECONDS)

    def _receive_command(self, command: str) -> None:
        """Accept an operator's command, which any child's heartbeat may return. Called from the lease renewal
        thread.
        """
        self._commands.append(command)
        self._stop_signals.wake()

    def _execute_commands(self) -> None:
        """Apply operators' commands to all children, and to the children that will replace them."""
        while self._commands:
            command = self._commands.popleft()
            logger.info("worker %s got the command to %s", self.options.worker_id, command)
            if command == STOP_COMMAND:
                self._stop_signals.stop_count = max(1, self._stop_signals.stop_count)
                continue
            self._is_draining = command == DRAIN_COMMAND
            self._give_back_waiting()
            for child in self._children:
                child.set_draining(is_draining=self._is_draining)

    def _handle_signals(self) -> None:
        if self._stop_signals.dump_count != self._dumps_seen:
            self._dumps_seen = self._stop_signals.dump_count
            logger.info("worker %s: the stacks of all threads follow on standard error", self.options.worker_id)
            child_main.write_stacks()
            for child in self._children:
                child.dump_stacks()
        if self._stop_signals.stop_count == self._stops_seen:
            return
        first = self._stops_seen == 0
        self._stops_seen = self._stop_signals.stop_count
        self._leaving.set()
        self._start_due.clear()
        self._give_back_waiting()
        if first and self._stops_seen == 1:
            running = sum(len(slot.tasks) for child in self._children for slot in child.status_board.list_running())
            logger.info(
                "stopping: %d running tasks have %g s to end; a second signal ends them at once",
                *(running, self.options.shutdown_timeout),
            )
            for child in self._children:
                child.stop(monotonic() + self.options.shutdown_timeout)
        else:
            logger.warning("stopping at once: running tasks are given back")
            self._kill_all(EndReason.WORKER_STOPPED_AT_ONCE)

    def _kill_all(self, reason: EndReason) -> None:
        while self._children:
            self._children[0].kill(reason)
            self._remove_child(self._children[0])

    def _replace_all(self, why: str) -> None:
        logger.info("%s: worker processes are replaced", why)
        for child in self._children:
            if not child.is_stopping:
                child.stop(monotonic() + self.options.shutdown_timeout)
                if child.task is None:
                    self._start_due[child.index] = 0.0
        self._process_factory.renew()
        self._failures = self._unfit = 0

    # --- children ---

    def _start_children(self) -> None:
        now = monotonic()
        # Wait in a burst: a child that starts before the tasks of a dead child are given back could find no task and
        # end the burst.
        is_early = self.options.burst and self._lease_renewal.has_returns
        for index in [index for index, due in self._start_due.items() if due <= now and not is_early]:
            if self._start_child(index) is None:
                return
            del self._start_due[index]
        self._start_separate_children()

    def _start_separate_children(self) -> None:
        while (task := self._separate.next()) and (child := self._start_child(-1, task)):
            if task.reason is not AloneReason.ISOLATED:
                logger.warning(
                    "task %s runs alone in process %s: %s",
                    *(printable(task.task_id), child.worker_id, task.reason.value),
                )
            self._separate.begin(task, monotonic())

    def _start_child(self, index: int, task: SeparateTask | None = None) -> ChildProcess | None:
        """Start a process, and renew its leases from now on. Return None if no process can be started now."""
        if not self._process_factory.is_ready():
            return None
        self._incarnation += 1
        try:
            child = ChildProcess(self._process_factory, self.options, index, self._incarnation, task)
        except ForkServerGoneError:  # `ProcessFactory.read_messages` starts another server
            return None
        child.deaths = self._deaths
        if self._is_draining and task is None:
            child.set_draining(is_draining=True)
        self._children.append(child)
        self._lease_renewal.add(child.renewed)
        return child

    # --- tasks that run in separate processes ---

    def _give_back_waiting(self) -> None:
        self._give_back_separate([(task, 0.0) for task in self._separate.take_waiting()])

    def _give_back_separate(self, returned: Sequence[tuple[SeparateTask, float]]) -> None:
        """Give back leases that no process has taken over, each with the delay in seconds until its task is ready
        again. Then notify the processes that fetched the tasks.
        """
        if not returned:
            return
        outcomes: dict[tuple[int, str], list[Outcome]] = defaultdict(list)
        for task, delay in returned:
            lease = partial_lease(task.token, task.task_id, task.fetched_by)
            outcomes[task.shard_index, task.fetched_by].append(Outcome.release(lease, delay=delay or None))
        self._lease_renewal.give_back(
            [
                LeaseReturn(
                    *(self._shards[shard_index].display_name, fetched_by, ""),
                    outcomes=some,
                    is_gone=False,
                    on_done=partial(
                        self._report_separate_ends, shard_index, fetched_by, [outcome.lease.token for outcome in some]
                    ),
                )
                for (shard_index, fetched_by), some in outcomes.items()
            ]
        )

    def _report_separate_ends(self, shard_index: int, fetched_by: str, tokens: Sequence[int]) -> None:
        """Notify the process that fetched these tasks that they have ended. Can be called from any thread."""
        for child in tuple(self._children):
            if child.worker_id == fetched_by:
                child.report_separate_ends(shard_index, tokens)
                self._stop_signals.wake()

    def _remove_child(self, child: ChildProcess) -> None:
        """Give back the tasks of an ended process at once, then decide when to replace the process."""
        self._children.remove(child)
        self._lease_renewal.remove(child.worker_id)
        self._unknown_tasks.pop(child.worker_id, None)
        if death := describe_death(child):
            self._deaths.append(death)
        if child.task is not None and child.died_with_fork_server:
            # If the fork server died too, another task may be the cause.
            child.is_blameless = not self._separate.may_have_ended_fork_server(child.task)
            self._separate.run_one_at_a_time(monotonic())
        returns = leases_to_return(child, self._shards)
        if child.task is None and not self.is_stopping:
            self._keep_separate_tasks(child, returns)
        self._lease_renewal.give_back(returns)
        self._separate.forget(child.worker_id)
        if child.task is not None:
            self._separate.end(child.task, monotonic())
            self._report_separate_ends(child.task.shard_index, child.task.fetched_by, [child.task.token])
            if not child.is_done:
                # The process may not have taken over the lease. If it has, this token is outdated and the call changes nothing.
                self._give_back_separate([(child.task, SUSPECT_RETURN_SECONDS)])
        code, by_itself = child.exitcode, not child.kill_reason
        done = child.is_stopping or (code == 0 and self.options.burst)
        if by_itself and code != 0:
            logger.error("worker process %s died (exit code %s)", child.worker_id, code)
        if not (done or self.is_stopping or child.task is not None):
            due = 0.0 if child.is_ready or child.kill_reason else self._next_start_after_failure()
            if not self.is_stopping:
                self._start_due[child.index] = due
        child.close()

    def _keep_separate_tasks(self, child: ChildProcess, returns: Sequence[LeaseReturn]) -> None:
        """Let separate tasks that an ended process has passed on continue in their own processes.

        If suspects were given back here, further tasks of the same user could kill one shared process after another
        before a suspect runs alone.
        """
        self._start_separate_children()
        for other in self._children:
            if other.task is not None and other.task.fetched_by == child.worker_id:
                key = LeaseKey(other.task.task_id, other.task.token)
                returns[other.task.shard_index].moved.append((key, other.worker_id))

    def _next_start_after_failure(self) -> float:
        """Return the time of the next start after a process died before it was ready. After too many such deaths the
        worker gives up.
        """
        self._failures += 1
        if self._failures >= MAX_FAILED_STARTS and not self._was_ready and self._reloader is None:
            logger.error("%d worker processes in a row could not begin; giving up", self._failures)
            self._give_up()
        return next_start_time(self._failures)

    def _give_up(self) -> None:
        self._gave_up = True
        self._start_due.clear()
        self._kill_all(EndReason.WORKER_GAVE_UP)

    # --- health ---

    def _server(self) -> str:
        """Return the server's name and version for the log. If the server can't be reached, continue, because it may
        start later. If its version is unsupported, raise that error, because the version will not change.
        """
        try:
            server = self._queues[0].with_retry_timeout(STARTUP_RETRY_SECONDS).health().server
            self._outages.record_success()
        except UnsupportedServerError:
            raise
        except RedisConnectionError as error:
            self._outages.record_failure(error)
            return "no server yet"
        return " ".join(str(server[key]) for key in ("name", "version") if key in server) or "a server"

    def _report_health(self) -> None:
        now = monotonic()
        reasons = self._child_limits.unhealthy_reasons(self._children)
        pause = min(self.options.renewal_interval, *(1.5 * queue.config.sweep_interval for queue in self._queues))
        pause += self._lease_renewal.max_silence(get_config().redis.socket_timeout)
        if now - self._lease_renewal.last_success_at > pause + MAX_RENEWAL_SILENCE_SECONDS or self._outages.is_ongoing:
            reasons.insert(0, "the server does not answer")
        if not self.is_stopping and not any(child.is_ready and child.task is None for child in self._children):
            reasons.append("no worker process is ready")
        processes = [
            {"ready": child.is_ready, "leaving": child.is_stopping, **child.info()}
            for child in self._children
            if child.task is None
        ]
        self.figures = worker_figures(processes, self.options.concurrency, is_healthy=not reasons)
        self._health_file.update(now, reasons, {"worker": self.options.worker_id, "processes": processes})


def next_start_time(failures: int) -> float:
    """Return the time of the next start of a process after ``failures`` failed starts in a row."""
    return monotonic() + min(MAX_START_BACKOFF_SECONDS, 0.5 * 2.0 ** min(failures - 1, 10)) if failures else 0.0
