"""From nothing to PONG, with exactly one server however many processes want one at once."""

from __future__ import annotations

import contextlib
import logging
import time
from typing import TYPE_CHECKING

from django_fairque.embedded import locks, processes
from django_fairque.embedded.launch import launch
from django_fairque.embedded.log import tail
from django_fairque.embedded.probe import Answer, ReplyError, ask
from django_fairque.embedded.stopping import evict
from django_fairque.engine.model.errors import ConfigurationError, RedisConnectionError

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from django_fairque.embedded.directory import PrivateDirectory
    from django_fairque.embedded.site import Site

logger = logging.getLogger("django_fairque.embedded")

# A server that ends while it loads was killed from outside, or will never load: both show within three.
ATTEMPTS = 3
# A server lives and nobody listens: its socket file was deleted, or only a child of it is left.
DEAF_SECONDS = 2.0
# For one answer to PING.
PING_SECONDS = 1.0
# Its lock is free and nobody listens: it ended, unless it is coming up and has dropped the lock (_check_inheritance).
GONE_SECONDS = 0.3

_retired: set[Path] = set()
"""Where nobody in this process starts a server any more."""


class Patience:
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


def bring_up(site: Site) -> bool:
    """Return when the server answers PONG; true if it was started here.

    A living server is never doubled: while anybody holds server.lock, the only ways out are its PONG, its end, or an
    error after ``site.timeout`` seconds without an answer (``site.answer_timeout`` if it listens). One that is loading its
    file answers, and is waited for.
    """
    patience = Patience(site.timeout)
    hanging = Patience(site.answer_timeout)
    deaf = Patience(DEAF_SECONDS)
    failures = 0
    while True:
        answer = site.ping(min(PING_SECONDS, site.answer_timeout))
        if answer is Answer.PONG:
            return False
        if answer is Answer.NOBODY:
            started = _try_start(site, deaf)
            if started:
                return True
            failures += started is False
            if failures == ATTEMPTS:
                raise _ended(site)
        else:
            deaf.renew()
        if answer is not Answer.SILENT:
            hanging.renew()
        if answer is Answer.LOADING:
            patience.renew()
        if patience.is_over or hanging.is_over:
            raise _silent(site, (patience if patience.is_over else hanging).seconds)
        patience.pause()


def retire(site: Site) -> None:
    """Start none there in this process any more; whoever is at it has started one when `stopping.stop` comes to its turn."""
    _retired.add(site.directory)


def _try_start(site: Site, deaf: Patience) -> bool | None:
    """Start the server if none lives. False: it ended before it answered. None: there was nothing to do."""
    _check_wanted(site)  # before a directory is made
    with site.open(create=True) as directory:
        start_lock = locks.try_lock(directory, locks.START)
        if start_lock is None:  # somebody else is at it
            deaf.renew()
            return None
        try:
            _check_wanted(site)  # it may have been retired since
            server_lock = locks.try_lock(directory, locks.SERVER)
            if server_lock is not None:
                locks.check(directory, locks.SERVER)
                return _await(site, directory, launch(site, directory, server_lock))
            if deaf.is_over:
                evict(site, directory)
                deaf.renew()
            return None
        finally:
            locks.unlock(start_lock)


def _check_wanted(site: Site) -> None:
    if site.directory in _retired:
        raise RedisConnectionError(f"the embedded server in {site.directory} has been ended for good")


def _await(site: Site, directory: PrivateDirectory, launcher: subprocess.Popen[bytes]) -> bool:
    """Whether the server just launched comes up; false if it ended instead, which frees its lock."""
    try:
        if not _answers(site, directory, launcher):
            return False
    finally:
        launcher.kill()  # it ended long ago, unless something is badly wrong with it
        launcher.wait()
    _check_inheritance(site, directory)
    logger.info("started the embedded server in %s", site.directory)
    return True


def _answers(site: Site, directory: PrivateDirectory, launcher: subprocess.Popen[bytes]) -> bool:
    patience = Patience(site.timeout)
    gone = Patience(GONE_SECONDS)
    while True:
        answer = site.ping()
        if answer is Answer.PONG:
            return True
        if launcher.poll():
            raise _failed(site, f"refused to start (exit status {launcher.returncode})", tail(directory))
        if answer is Answer.LOADING:
            patience.renew()
        if answer is not Answer.NOBODY or launcher.poll() is None or not locks.is_free(directory, locks.SERVER):
            gone.renew()
        elif gone.is_over:
            return False
        if patience.is_over:
            raise _failed(site, f"gave no answer for {site.timeout:g} s after its start", tail(directory))
        patience.pause()


def _check_inheritance(site: Site, directory: PrivateDirectory) -> None:
    """Refuse a server that has dropped the lock, as one behind sudo does: the next starter would start a second one."""
    if not locks.is_free(directory, locks.SERVER) or site.ping() is not Answer.PONG:
        return
    with contextlib.suppress(ReplyError, OSError):  # the connection just ends
        ask(site.socket, "SHUTDOWN", "NOSAVE", timeout=site.timeout)
    raise ConfigurationError(
        f"the server in {site.directory} does not keep the file descriptor it was started with, which is its lock: "
        "run the server's own binary and not a wrapper around it"
    )


def _ended(site: Site) -> RedisConnectionError:
    with site.open(create=True) as directory:
        return _failed(site, f"ended {ATTEMPTS} times before it answered", tail(directory))


def _silent(site: Site, seconds: float) -> RedisConnectionError:
    with site.open(create=True) as directory:
        pids = processes.holders(directory)
    silence = f"gave no answer for {seconds:g} s"
    if not pids:
        return _failed(site, f"{silence}, while another process was starting or stopping it")
    return _failed(
        site,
        f"{silence}, though process {pids[0]} lives. If that is suspended, kill -CONT {pids[0]} wakes it; "
        "manage.py fairque_server restart ends it and starts another",
    )


def _failed(site: Site, what: str, log: str = "") -> RedisConnectionError:
    return RedisConnectionError(f"the embedded server in {site.directory} {what}{log}")
