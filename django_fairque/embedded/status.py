"""What a person wants to know about the server."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from django_fairque.embedded import binary, locks, processes
from django_fairque.embedded.probe import ReplyError, read_info
from django_fairque.engine.model.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

    from django_fairque.embedded.directory import PrivateDirectory
    from django_fairque.embedded.site import ServerSite


@dataclass(frozen=True)
class AofStatus:
    """The append-only file. Sizes in bytes; ``delayed_fsyncs`` counts the syncs that took more than 2 s."""

    size: int
    base_size: int
    appendfsync: str
    last_write_ok: bool
    rewriting: bool
    delayed_fsyncs: int


@dataclass(frozen=True)
class ServerStatus:
    """``running`` but not ``answers``: the process lives and says nothing; then most fields are unknown.

    ``uptime`` in seconds, ``memory`` in bytes. ``notes`` are sentences about what somebody should do.
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
        return replace(
            unknown, running=True, pid=min(processes.find_lock_holders(directory), default=None), notes=(note,)
        )


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
        clients=int(fields["connected_clients"]) - 1,  # not counting the one that asked
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
