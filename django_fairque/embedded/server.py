"""`EmbeddedServer`, the development server of a project: its status, and connections that start it when they connect."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from redis.asyncio.connection import UnixDomainSocketConnection as AsyncUnixDomainSocketConnection
from redis.connection import UnixDomainSocketConnection

from django_fairque.embedded import binary, locks
from django_fairque.embedded.lifecycle import ensure_running, forbid_starts, stop_server
from django_fairque.embedded.probe import ReplyError, read_info
from django_fairque.embedded.site import ServerSite
from django_fairque.engine.model.errors import ConfigurationError, RedisConnectionError

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from django_fairque.embedded.directory import PrivateDirectory


@dataclass(frozen=True)
class AofStatus:
    """The append-only file. Sizes are in bytes: ``size`` now, ``base_size`` after it was last rewritten;
    ``rewriting`` is whether that goes on. ``appendfsync`` is its setting; ``last_write_ok`` whether the last write
    succeeded; ``delayed_fsyncs`` counts the syncs that took more than 2 s.
    """

    size: int
    base_size: int
    appendfsync: str
    last_write_ok: bool
    rewriting: bool
    delayed_fsyncs: int


@dataclass(frozen=True)
class ServerStatus:
    """The state of the server. ``running`` but not ``answers``: the process lives and does not reply; then most fields
    are unknown.

    ``directory`` and ``socket`` are its paths; ``pid`` is its process, ``server`` and ``version`` are its product,
    ``binary`` is its program. ``clients`` are connected. ``uptime`` is in seconds, ``memory`` in bytes. ``aof`` is its
    append-only file. ``notes`` are sentences about what should be done.
    """

    running: bool
    directory: Path
    socket: Path
    answers: bool = False
    pid: int | None = None
    server: str = ""
    version: str = ""
    binary: str = ""
    uptime: int | None = None
    clients: int | None = None
    memory: int | None = None
    aof: AofStatus | None = None
    notes: tuple[str, ...] = ()


def read_status(site: ServerSite) -> ServerStatus:
    unknown = ServerStatus(running=False, directory=site.directory, socket=site.socket)
    try:
        directory = site.open(create=False)
    except FileNotFoundError:
        return unknown
    with directory:
        if locks.is_free(directory, locks.SERVER_LOCK):
            return unknown
        site.check_socket()
        try:
            fields = read_info(site.socket, site.timeout)
        except ReplyError as error:
            note = f"it says: {error}"
        except OSError as error:
            note = f"it does not answer ({error}); manage.py fairque_server restart ends it and starts it again"
        else:
            return _status_from_info(unknown, fields, _notes(site, directory, fields))
        return replace(unknown, running=True, pid=min(locks.find_lock_holders(directory), default=None), notes=(note,))


def _status_from_info(unknown: ServerStatus, fields: dict[str, str], notes: tuple[str, ...]) -> ServerStatus:
    return replace(
        unknown,
        running=True,
        answers=True,
        pid=int(fields["process_id"]),
        server=_server_name(fields),
        version=_server_version(fields),
        binary=fields["executable"],
        uptime=int(fields["uptime_in_seconds"]),
        clients=int(fields["connected_clients"]) - 1,  # not counting this one
        memory=int(fields["used_memory"]),
        aof=AofStatus(
            size=int(fields["aof_current_size"]),
            base_size=int(fields["aof_base_size"]),
            appendfsync=fields["appendfsync"],
            last_write_ok=fields["aof_last_write_status"] == "ok",
            rewriting=fields["aof_rewrite_in_progress"] == "1",
            delayed_fsyncs=int(fields["aof_delayed_fsync"]),
        ),
        notes=notes,
    )


def _server_name(fields: dict[str, str]) -> str:
    return fields.get("server_name", "redis")


def _server_version(fields: dict[str, str]) -> str:
    # Every Valkey says redis_version 7.2.4, for clients that look only there.
    return fields.get("valkey_version") or fields["redis_version"]


def _notes(site: ServerSite, directory: PrivateDirectory, fields: dict[str, str]) -> tuple[str, ...]:
    notes = []
    if fields["loading"] == "1":
        notes.append(f"it is loading its file, of which {float(fields['loading_loaded_perc']):.0f} % are done")
    running = f"{_server_name(fields)} {_server_version(fields)}"
    try:
        installed = str(binary.read_version(binary.make_executable(site.find_binary(), directory)))
    except ConfigurationError as error:
        notes.append(f"once stopped it can't be started again: {error}")
    else:
        if installed != running:
            notes.append(f"{running} runs, {installed} is installed: manage.py fairque_server restart changes to it")
    if fields["appendfsync"] != site.appendfsync:
        notes.append(
            f"it runs with appendfsync {fields['appendfsync']}, {site.appendfsync} is configured: "
            "manage.py fairque_server restart changes to it"
        )
    return tuple(notes)


class EmbeddedServer:
    """The server whose data, log and socket are in ``directory`` (made if its parent exists).

    An object holds nothing open: any number of them, in any number of processes and threads, name the same server. It
    is stopped by `stop` only, not by the end of the process that started it.

    - ``directory``: new, empty, or made by an earlier start; its permissions become those of its owner alone. Any
      other existing directory, a link and another user's directory are refused.
    - ``binary``: the server to run; by default what `find_binary` finds.
    - ``appendfsync``: "everysec" (the default): a power cut may cost the last second or two. "always": nothing, at
      about half the speed.
    - ``timeout``: seconds without any reply after which a call gives up; 10 by default.
    - ``answer_timeout``: the same for a server that runs and does not reply, because it hangs or was suspended;
      ``timeout`` by default.

    Raises `ConfigurationError` if there is no binary, or the directory can't be used. Its methods raise
    `RedisConnectionError` if the server does not start, or lives and does not reply.
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
        self._site = ServerSite.at(
            directory, binary=binary, appendfsync=appendfsync, timeout=timeout, answer_timeout=answer_timeout
        )

    @property
    def directory(self) -> Path:
        """The server's directory."""
        return self._site.directory

    @property
    def socket(self) -> str:
        """The socket's path, the same whether the server runs or not."""
        return str(self._site.socket)

    def ensure(self) -> str:
        """Return the path of the socket, on which a server answers now (0.2 ms if it did already)."""
        self.start()
        return self.socket

    def start(self) -> bool:
        """Start the server if it does not run. Returns whether this call started it."""
        try:
            return ensure_running(self._site)
        except OSError as error:
            raise self._failed("started", error) from error

    def stop(self) -> bool:
        """End the server, its file written and synced. Returns whether one was running."""
        try:
            return stop_server(self._site)
        except OSError as error:
            raise self._failed("stopped", error) from error

    def retire(self) -> bool:
        """End the server, and let no thread of this process start it again: for a directory that is about to be
        removed. Returns whether one was running.
        """
        forbid_starts(self._site)
        return self.stop()

    def restart(self) -> None:
        """Stop and start, with the binary and the options of this object."""
        self.stop()
        self.start()

    def status(self) -> ServerStatus:
        """Return the state of the server; it is not started."""
        try:
            return read_status(self._site)
        except OSError as error:
            raise self._failed("looked at", error) from error

    def _failed(self, what: str, error: OSError) -> RedisConnectionError:
        return RedisConnectionError(f"the embedded server in {self.directory} can't be {what}: {error}")


class _EmbeddedConnectionBase:
    def __init__(
        self, *, embedded_directory: str, embedded_options: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        self._embedded = EmbeddedServer(embedded_directory, **embedded_options or {})
        super().__init__(**{**kwargs, "path": self._embedded.socket})


class EmbeddedConnection(_EmbeddedConnectionBase, UnixDomainSocketConnection):
    """A connection to the server in ``embedded_directory``, which is started if it does not run. It is made by the
    pool of a client.

    Only connecting starts it: a command that was in progress when the server died raises as ever, because only its
    sender knows whether it may be sent again.
    """

    def connect(self) -> None:
        """Start the server if it does not run, and connect."""
        self._ensure()
        super().connect()  # type: ignore[no-untyped-call]

    def connect_check_health(self, *args: Any, **kwargs: Any) -> None:
        """Start the server if it does not run, and connect; ``args`` and ``kwargs`` are those of redis-py."""
        # redis-py 8 comes here directly to reconnect for a command.
        self._ensure()
        super().connect_check_health(*args, **kwargs)

    def _ensure(self) -> None:
        """Before a connection is tried and not after its failure: this also waits for a server that is loading, refuses
        the socket of a stranger, and is not taken in by one that has been killed and whose socket still takes connections.
        """
        if self._sock is None:
            self._embedded.ensure()


class AsyncEmbeddedConnection(_EmbeddedConnectionBase, AsyncUnixDomainSocketConnection):
    """As `EmbeddedConnection`, for coroutines: a thread starts the server."""

    async def connect(self) -> None:
        """Start the server if it does not run, and connect."""
        await self._ensure()
        await super().connect()  # type: ignore[no-untyped-call]

    async def connect_check_health(self, *args: Any, **kwargs: Any) -> None:
        """Start the server if it does not run, and connect; ``args`` and ``kwargs`` are those of redis-py."""
        await self._ensure()
        await super().connect_check_health(*args, **kwargs)

    async def _ensure(self) -> None:
        # Not in _connect, whose every error redis-py turns into its own and retries.
        if not self.is_connected:
            await asyncio.to_thread(self._embedded.ensure)


def connection_pool_kwargs(
    directory: str | os.PathLike[str], *, asynchronous: bool = False, **options: Any
) -> dict[str, Any]:
    """Return the arguments that a ``ConnectionPool`` of redis-py needs to reach the server. Nothing is started before
    the first connection is made.

    ``directory`` and ``options`` are those of `EmbeddedServer`. ``asynchronous`` is whether the pool is one of
    ``redis.asyncio``; False by default.
    """
    server = EmbeddedServer(directory, **options)
    return {
        "connection_class": AsyncEmbeddedConnection if asynchronous else EmbeddedConnection,
        "path": server.socket,
        "embedded_directory": str(server.directory),
        "embedded_options": options,
    }
