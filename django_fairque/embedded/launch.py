"""Starting the process: everything it needs in its directory, then the process itself, with the lock in its hands."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
from typing import TYPE_CHECKING

from django_fairque.embedded import binary, config_file, processes, record
from django_fairque.embedded.directory import PrivateDirectory
from django_fairque.embedded.log import open_log
from django_fairque.engine.model.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

    from django_fairque.embedded.site import ServerSite

logger = logging.getLogger("django_fairque.embedded")

_INHERITED_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")

ALLOCATOR_VARIABLES = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=1000"}
"""For servers that were built with glibc's allocator, as those in wheels are: it keeps 1,000 freed pieces of each size
at hand, not 7. A script asks for hundreds and frees them; the more the server holds, the dearer the long way is. Other
allocators don't know the variable."""


def launch(site: ServerSite, directory: PrivateDirectory, server_lock: int) -> subprocess.Popen[bytes]:
    """Start the server and give it the lock, which is closed here in every case.

    The process returned is only the launcher: it ends at once with 0, leaving the daemon behind, or tells in the log
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
    _check_binary_version(program, version, record.read_record(directory))
    # Their data is gone already. An orderly end would also remove the socket, by then the new server's.
    processes.send_signal(processes.find_orphans(directory.path), signal.SIGKILL)
    with PrivateDirectory(directory.path / config_file.DATA_DIRECTORY, create=True, is_part=True):
        pass
    if site.socket.parent != directory.path:
        with PrivateDirectory(site.socket.parent, create=True, is_part=True):
            pass
    site.check_socket()
    site.socket.unlink(missing_ok=True)  # server.lock is ours: nobody can be listening on it
    directory.replace(".gitignore", b"*\n")
    directory.replace(config_file.CONFIG_FILE, config_file.render_config(directory.path, site.socket, site.appendfsync))
    record.write_record(directory, record.StartRecord(version.server, version.text, str(program), str(site.socket)))


def _check_binary_version(program: Path, version: binary.BinaryVersion, last: record.StartRecord | None) -> None:
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
            [program, directory.path / config_file.CONFIG_FILE],
            pass_fds=(server_lock,),
            umask=0o077,
            start_new_session=True,  # Ctrl-C in the starter's terminal is not meant for it
            cwd=directory.path / config_file.DATA_DIRECTORY,
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
