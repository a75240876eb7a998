"""From nothing to PONG, with exactly one server however many processes want one at once."""

from __future__ import annotations

import contextlib
import logging
import time
from typing import TYPE_CHECKING

from django_fairque.embedded import locks, processes
from django_fairque.embedded.launch import launch
from django_fairque.embedded.log import read_log_tail
from django_fairque.embedded.probe import PingResult, ReplyError, send_command
from django_fairque.embedded.stopping import stop_unreachable
from django_fairque.engine.model.errors import ConfigurationError, RedisConnectionError

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from django_fairque.embedded.directory import PrivateDirectory
    from django_fairque.embedded.site import ServerSite

logger = logging.getLogger("django_fairque.embedded")

# A server that ends while it loads was killed from outside, or will never load: both show within three.
START_ATTEMPTS = 3
# A server lives and nobody listens: its socket file was deleted, or only a child of it is left.
UNREACHABLE_SECONDS = 2.0
# For one answer to PING.
PING_SECONDS = 1.0
# Its lock is free and nobody listens: it ended, unless it is coming up and has dropped the lock (_check_inheritance).
ENDED_SECONDS = 0.3

_directories_without_starts: set[Path] = set()
"""Where nobody in this process starts a server any more."""


class WaitTimer:
    """Gives up after so many seconds; pauses grow from 1 to 20 ms, a start takes about 40."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.renew()

    def renew(self) -> None:
        self._begin = time.monotonic()
        self._pause = 0.001

    @property
    def spent(self) -> float:
        return time.monotonic() - self._begin

    @property
    def is_over(self) -> bool:
        return self.spent > self.seconds

    def pause(self) -> None:
        time.sleep(self._pause)
        self._pause = min(self._pause * 1.5, 0.02)


def ensure_running(site: ServerSite) -> bool:
    """Return when the server answers PONG; true if it was started here.

    A living server is never doubled: while anybody holds server.lock, the only ways out are its PONG, its end, or an
    error after ``site.timeout`` seconds without an answer (``site.answer_timeout`` if it listens). One that is loading its
    file answers, and is waited for.
    """
    any_answer = WaitTimer(site.timeout)
    useful_answer = WaitTimer(site.answer_timeout)
    unreachable = WaitTimer(UNREACHABLE_SECONDS)
    failures = 0
    while True:
        answer = site.ping(min(PING_SECONDS, site.answer_timeout))
        if answer is PingResult.PONG:
            return False
        if answer is PingResult.NOBODY:
            started = _try_start(site, unreachable)
            if started:
                return True
            failures += started is False
            if failures == START_ATTEMPTS:
                raise _ended_error(site)
        else:
            unreachable.renew()
        if answer is not PingResult.SILENT:
            useful_answer.renew()
        if answer is PingResult.LOADING:
            any_answer.renew()
        if any_answer.is_over or useful_answer.is_over:
            raise _silent_error(site, (any_answer if any_answer.is_over else useful_answer).seconds)
        any_answer.pause()


def forbid_starts(site: ServerSite) -> None:
    """Start none there in this process any more; whoever is at it has started one when `stopping.stop` comes to its turn."""
    _directories_without_starts.add(site.directory)


def _try_start(site: ServerSite, unreachable: WaitTimer) -> bool | None:
    """Start the server if none lives. False: it ended before it answered. None: there was nothing to do."""
    _check_starts_allowed(site)  # before a directory is made
    with site.open(create=True) as directory:
        start_lock = locks.try_lock(directory, locks.START_LOCK)
        if start_lock is None:  # somebody else is at it
            unreachable.renew()
            return None
        try:
            _check_starts_allowed(site)  # it may have been retired since
            server_lock = locks.try_lock(directory, locks.SERVER_LOCK)
            if server_lock is not None:
                locks.check_inheritable(directory, locks.SERVER_LOCK)
                return _wait_for_start(site, directory, launch(site, directory, server_lock))
            if unreachable.is_over:
                stop_unreachable(site, directory)
                unreachable.renew()
            return None
        finally:
            locks.unlock(start_lock)


def _check_starts_allowed(site: ServerSite) -> None:
    if site.directory in _directories_without_starts:
        raise RedisConnectionError(f"the embedded server in {site.directory} has been ended for good")


def _wait_for_start(site: ServerSite, directory: PrivateDirectory, launcher: subprocess.Popen[bytes]) -> bool:
    """Whether the server just launched comes up; false if it ended instead, which frees its lock."""
    try:
        if not _wait_for_answer(site, directory, launcher):
            return False
    finally:
        launcher.kill()  # it ended long ago, unless something is badly wrong with it
        launcher.wait()
    _check_inheritance(site, directory)
    logger.info("started the embedded server in %s", site.directory)
    return True


def _wait_for_answer(site: ServerSite, directory: PrivateDirectory, launcher: subprocess.Popen[bytes]) -> bool:
    no_answer = WaitTimer(site.timeout)
    ended = WaitTimer(ENDED_SECONDS)
    while True:
        answer = site.ping()
        if answer is PingResult.PONG:
            return True
        if launcher.poll():
            raise _start_error(site, f"refused to start (exit status {launcher.returncode})", read_log_tail(directory))
        if answer is PingResult.LOADING:
            no_answer.renew()
        if (
            answer is not PingResult.NOBODY
            or launcher.poll() is None
            or not locks.is_free(directory, locks.SERVER_LOCK)
        ):
            ended.renew()
        elif ended.is_over:
            return False
        if no_answer.is_over:
            raise _start_error(site, f"gave no answer for {site.timeout:g} s after its start", read_log_tail(directory))
        no_answer.pause()


def _check_inheritance(site: ServerSite, directory: PrivateDirectory) -> None:
    """Refuse a server that has dropped the lock, as one behind sudo does: the next starter would start a second one."""
    if not locks.is_free(directory, locks.SERVER_LOCK) or site.ping() is not PingResult.PONG:
        return
    with contextlib.suppress(ReplyError, OSError):  # the connection just ends
        send_command(site.socket, "SHUTDOWN", "NOSAVE", timeout=site.timeout)
    raise ConfigurationError(
        f"the server in {site.directory} does not keep the file descriptor it was started with, which is its lock: "
        "run the server's own binary and not a wrapper around it"
    )


def _ended_error(site: ServerSite) -> RedisConnectionError:
    with site.open(create=True) as directory:
        return _start_error(site, f"ended {START_ATTEMPTS} times before it answered", read_log_tail(directory))


def _silent_error(site: ServerSite, seconds: float) -> RedisConnectionError:
    with site.open(create=True) as directory:
        pids = processes.find_lock_holders(directory)
    silence = f"gave no answer for {seconds:g} s"
    if not pids:
        return _start_error(site, f"{silence}, while another process was starting or stopping it")
    return _start_error(
        site,
        f"{silence}, though process {pids[0]} lives. If that is suspended, kill -CONT {pids[0]} wakes it; "
        "manage.py fairque_server restart ends it and starts another",
    )


def _start_error(site: ServerSite, what: str, log: str = "") -> RedisConnectionError:
    return RedisConnectionError(f"the embedded server in {site.directory} {what}{log}")
