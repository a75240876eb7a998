"""Starting and stopping the server.

However many processes want a server at once, exactly one is started. Only its lock decides whether it runs or has ended.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING

from django_fairque.embedded import binary, locks, server_files
from django_fairque.embedded.directory import PrivateDirectory
from django_fairque.embedded.probe import PingResult, ReplyError, send_command
from django_fairque.embedded.server_files import open_log, read_log_tail
from django_fairque.engine.model.errors import ConfigurationError, RedisConnectionError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from django_fairque.embedded.site import ServerSite


logger = logging.getLogger("django_fairque.embedded")

_SHUTDOWN_SECONDS = 10.0
_TERM_SECONDS = 3.0
_KILL_SECONDS = 5.0


def stop_server(site: ServerSite) -> bool:
    """End the server; false if none was running."""
    try:
        directory = site.open(create=False)
    except FileNotFoundError:
        deserted = locks.find_orphans(site.directory)
        locks.send_signal(deserted, signal.SIGKILL)
        return bool(deserted)
    with directory, _holding_start_lock(site, directory):
        if locks.is_free(directory, locks.SERVER_LOCK):
            return False
        if not (_shut_down(site) and locks.wait_until_free(directory, locks.SERVER_LOCK, _SHUTDOWN_SECONDS)):
            _terminate(site, directory)
        return True


def stop_unreachable(site: ServerSite, directory: PrivateDirectory) -> None:
    """End a server that lives but can't be reached here. The caller holds start.lock."""
    last = server_files.read_record(directory)
    if last and last.socket != str(site.socket):
        raise ConfigurationError(
            f"the embedded server in {site.directory} was started to listen on {last.socket}, expected {site.socket}: "
            "name its directory by the same path in every process"
        )
    if any(map(locks.has_other_mounts, locks.find_lock_holders(directory))):
        raise RedisConnectionError(
            f"the embedded server in {site.directory} runs in another container or with a private /tmp, "
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
        pids = locks.find_lock_holders(directory)
        locks.send_signal(pids, signal_number)
        locks.send_signal(pids, signal.SIGCONT)  # a suspended server wakes, and ends in an orderly way
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


_INHERITED_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")

ALLOCATOR_VARIABLES = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=1000"}
"""For servers that were built with glibc's allocator, as those in wheels are: it keeps 1,000 freed pieces of each size
at hand, not 7. A script asks for hundreds and frees them; the more the server holds, the dearer the long way is. Other
allocators don't know the variable."""


def launch(site: ServerSite, directory: PrivateDirectory, server_lock: int) -> subprocess.Popen[bytes]:
    """Start the server and give it the lock, which is closed here in every case.

    The process returned is only the launcher: it ends at once with 0, leaving the daemon behind, or reports in the log
    why it could not. The caller holds start.lock.
    """
    try:
        program = binary.make_executable(site.find_binary(), directory)
        _prepare_directory(site, directory, program)
        return _spawn_launcher(directory, program, server_lock)
    finally:
        os.close(server_lock)


def _prepare_directory(site: ServerSite, directory: PrivateDirectory, program: Path) -> None:
    version = binary.read_version(program)
    _check_binary_version(program, version, server_files.read_record(directory))
    # Their data is gone already. An orderly end would also remove the socket, by then the new server's.
    locks.send_signal(locks.find_orphans(directory.path), signal.SIGKILL)
    with PrivateDirectory(directory.path / server_files.DATA_DIRECTORY, create=True, is_part=True):
        pass
    if site.socket.parent != directory.path:
        with PrivateDirectory(site.socket.parent, create=True, is_part=True):
            pass
    site.check_socket()
    site.socket.unlink(missing_ok=True)  # server.lock is ours: nobody can be listening on it
    directory.replace(".gitignore", b"*\n")
    directory.replace(
        server_files.CONFIG_FILE, server_files.render_config(directory.path, site.socket, site.appendfsync)
    )
    server_files.write_record(
        directory, server_files.StartRecord(version.server, version.text, str(program), str(site.socket))
    )


def _check_binary_version(program: Path, version: binary.BinaryVersion, last: server_files.StartRecord | None) -> None:
    if version.numbers[:2] < binary.MIN_VERSION:
        raise ConfigurationError(
            f"{program} is {version}, expected at least {'.'.join(map(str, binary.MIN_VERSION))}: "
            'install a newer one, or pip install "django-fairque[embedded]"'
        )
    if last is None or last.server != version.server:
        return
    with contextlib.suppress(ValueError):
        if tuple(map(int, last.version.split(".")))[:2] > version.numbers[:2]:
            logger.warning(
                "%s was last used with %s %s; %s is older and may not know every command in its file",
                *(program.parent, last.server, last.version, version),
            )


def _spawn_launcher(directory: PrivateDirectory, program: Path, server_lock: int) -> subprocess.Popen[bytes]:
    log = open_log(directory)
    try:
        return subprocess.Popen(  # noqa: S603 - the program was checked, the rest is ours
            [program, directory.path / server_files.CONFIG_FILE],
            pass_fds=(server_lock,),
            umask=0o077,
            start_new_session=True,  # Ctrl-C in the starter's terminal is not meant for it
            cwd=directory.path / server_files.DATA_DIRECTORY,
            # LC_ALL: a locale that is not installed would stop it.
            env={"LC_ALL": "C"}
            | ALLOCATOR_VARIABLES
            | {name: os.environ[name] for name in _INHERITED_VARIABLES if name in os.environ},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    except OSError as error:
        raise ConfigurationError(f"{program} can't be run: {error}") from error
    finally:
        os.close(log)


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
    """Waits for at most ``seconds``. Its pauses grow from 1 to 20 ms; a start of the server takes about 40 ms."""

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
    """Start no server at the site in this process any more.

    A thread that is starting one finishes first: `stop_server` waits for the start lock.
    """
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
        pids = locks.find_lock_holders(directory)
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
