"""Ending the server. Whether it has ended is always judged by its lock."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING

from django_fairque.embedded import locks, processes, record
from django_fairque.embedded.probe import PingResult, ReplyError, send_command
from django_fairque.engine.model.errors import ConfigurationError, RedisConnectionError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django_fairque.embedded.directory import PrivateDirectory
    from django_fairque.embedded.site import ServerSite

_SHUTDOWN_SECONDS = 10.0
_TERM_SECONDS = 3.0
_KILL_SECONDS = 5.0


def stop_server(site: ServerSite) -> bool:
    """End the server; false if none was running."""
    try:
        directory = site.open(create=False)
    except FileNotFoundError:
        deserted = processes.find_orphans(site.directory)
        processes.send_signal(deserted, signal.SIGKILL)
        return bool(deserted)
    with directory, _holding_start_lock(site, directory):
        if locks.is_free(directory, locks.SERVER_LOCK):
            return False
        if not (_shut_down(site) and locks.wait_until_free(directory, locks.SERVER_LOCK, _SHUTDOWN_SECONDS)):
            _terminate(site, directory)
        return True


def stop_unreachable(site: ServerSite, directory: PrivateDirectory) -> None:
    """End a server that lives but can't be reached here. The caller holds start.lock."""
    last = record.read_record(directory)
    if last and last.socket != str(site.socket):
        raise ConfigurationError(
            f"the embedded server in {site.directory} was started to listen on {last.socket}, expected {site.socket}: "
            "name its directory by the same path in every process"
        )
    if any(map(processes.has_other_mounts, processes.find_lock_holders(directory))):
        raise RedisConnectionError(
            f"the embedded server in {site.directory} runs in another container or with a /tmp of its own, "
            f"and {site.socket} does not lead to it: use embedded:///absolute/dir with a path shorter than 90 bytes"
        )
    _terminate(site, directory)


def _shut_down(site: ServerSite) -> bool:
    """Ask for an orderly end (the append-only file is written and synced); false if it refuses or stays silent."""
    if site.ping() in {PingResult.SILENT, PingResult.NOBODY}:
        return False
    try:
        # NOSAVE is about the snapshot, which there is none of.
        send_command(site.socket, "SHUTDOWN", "NOSAVE", timeout=_SHUTDOWN_SECONDS)
    except (ReplyError, TimeoutError):
        return False
    except OSError:
        pass  # it hung up: that is its way of saying yes
    return True


def _terminate(site: ServerSite, directory: PrivateDirectory) -> None:
    for signal_number, seconds in ((signal.SIGTERM, _TERM_SECONDS), (signal.SIGKILL, _KILL_SECONDS)):
        pids = processes.find_lock_holders(directory)
        processes.send_signal(pids, signal_number)
        processes.send_signal(pids, signal.SIGCONT)  # a suspended server wakes, and ends in an orderly way
        if locks.wait_until_free(directory, locks.SERVER_LOCK, seconds):
            return
    raise RedisConnectionError(
        f"the embedded server in {site.directory} can't be ended from here: {locks.SERVER_LOCK} stays locked by a process "
        "that is no server of ours, or that runs in another container. Stop it where it was started"
    )


@contextlib.contextmanager
def _holding_start_lock(site: ServerSite, directory: PrivateDirectory) -> Iterator[None]:
    lock = locks.wait_for_lock(directory, locks.START_LOCK, site.timeout)
    if lock is None:
        raise RedisConnectionError(
            f"another process has been starting or stopping the server in {site.directory} for {site.timeout:g} s: "
            "try again when it is done, or end it"
        )
    try:
        yield
    finally:
        locks.unlock(lock)
