"""A directory that belongs to one embedded server. Checks are made on open files, so that no other process can replace
a file between the check and its use.
"""

from __future__ import annotations

import contextlib
import os
import stat
from typing import TYPE_CHECKING

from django_fairque.engine.model.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Self


MARKER = ".fairque-server"
"""The file that marks a directory as made by this package."""
_MARKER_TEXT = b"""This directory belongs to the embedded server of django_fairque.
Before you delete it: manage.py fairque_server stop
"""


class PrivateDirectory:
    """An open directory of an embedded server (mode 0700), with methods to open the files in it (mode 0600).

    An existing directory is used only if it is empty or was made by this package. In any other directory, no files are
    written and no permissions are changed. Files are opened relative to the directory's descriptor, and links are never
    followed. If permissions are too wide, they are reduced. For a file of another user, or a link, a
    `ConfigurationError` is raised.

    Parameters
    ----------
    is_part
        The directory needs no marker, because it is inside of a directory with a marker, or has a name that only this
        package uses.

    Raises
    ------
    FileNotFoundError
        The directory does not exist or is empty, and ``create`` is false.
    """

    def __init__(self, path: Path, *, create: bool, is_part: bool = False) -> None:
        self.path = path
        if create:
            try:
                path.mkdir(mode=0o700)
            except FileExistsError:
                pass
            except FileNotFoundError as error:
                raise ConfigurationError(
                    f"{path} can't be made because {path.parent} does not exist: create that first, or correct the path"
                ) from error
        self.fd = _open(path)
        try:
            if not is_part:
                self._claim(create=create)
            if os.fstat(self.fd).st_mode & 0o077:
                os.fchmod(self.fd, 0o700)
        except BaseException:
            os.close(self.fd)
            raise

    def _claim(self, *, create: bool) -> None:
        """Put the marker into an empty directory. Refuse any other directory without a marker."""
        with os.scandir(self.fd) as entries:
            names = sorted(entry.name for entry in entries)
        # Looked up after the names, because another process may create the marker and then its other files meanwhile.
        if os.access(MARKER, os.F_OK, dir_fd=self.fd, follow_symlinks=False):
            return
        if names:
            some = ", ".join(map(repr, names[:3])) + (", ..." if len(names) > 3 else "")
            raise ConfigurationError(
                f"{self.path} exists and holds files of something else ({some}): the embedded server uses a directory only "
                f"if it is new or empty. Name one that does not exist yet, such as {self.path / 'fairque'}, with "
                "embedded:///absolute/dir or --dir"
            )
        if create:
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(MARKER, flags, 0o600, dir_fd=self.fd), "wb") as file:
                file.write(_MARKER_TEXT)
        else:
            raise FileNotFoundError(f"{self.path} is empty")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    def is_current(self) -> bool:
        """Return whether the path still leads to this directory. False after the directory was removed or renamed."""
        try:
            found = self.path.lstat()
        except FileNotFoundError:
            return False
        return os.path.samestat(found, os.fstat(self.fd))

    def open(self, name: str, flags: int) -> int:
        """Return a descriptor of a regular file that belongs to this user and has no second name. If ``flags`` contain
        O_CREAT, the file is created with mode 0600.
        """
        try:
            # O_NONBLOCK: if the file was replaced by a pipe, opening it must not wait for the pipe's other end.
            fd = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600, dir_fd=self.fd)
        except OSError as error:
            if (self.path / name).is_symlink():
                raise _refused_error(self.path / name, "a symbolic link", "a regular file") from error
            raise
        try:
            self._check(name, os.fstat(fd))
            os.fchmod(fd, 0o600)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def replace(self, name: str, content: bytes, mode: int = 0o600) -> None:
        """Write a new file, and put it in the place of ``name``, whether or not a file with this name exists.

        Only the process that holds start.lock writes files. So a single temporary name is enough, and temporary files
        do not accumulate.
        """
        temporary = f"{name}.new"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=self.fd)
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode, dir_fd=self.fd)
        with os.fdopen(fd, "wb") as file:
            os.fchmod(fd, mode)  # the umask may have removed permissions that the file needs
            file.write(content)
        os.rename(temporary, name, src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def _check(self, name: str, found: os.stat_result) -> None:
        path = self.path / name
        if not stat.S_ISREG(found.st_mode):
            raise _refused_error(path, "no regular file", "a regular file")
        if found.st_uid != os.geteuid():
            raise foreign_owner_error(path, found.st_uid)
        if found.st_nlink > 1:
            raise _refused_error(path, "a file with a second name (a hard link)", "a file without other hard links")


def foreign_owner_error(path: Path, uid: int) -> ConfigurationError:
    return ConfigurationError(
        f"{path} belongs to uid {uid}, expected uid {os.geteuid()}, which this process runs as: "
        "run it as the owner, or name another directory with embedded:///absolute/dir"
    )


def _refused_error(path: Path, came: str, expected: str) -> ConfigurationError:
    return ConfigurationError(f"{path} is {came}, expected {expected}: look at what it is, then remove it")


def _open(path: Path) -> int:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        if path.is_symlink():
            raise _refused_error(path, "a symbolic link", "a directory") from error
        raise ConfigurationError(f"{path} can't be opened as a directory: {error.strerror}") from error
    found = os.fstat(fd)
    if found.st_uid != os.geteuid():
        os.close(fd)
        raise foreign_owner_error(path, found.st_uid)
    return fd
