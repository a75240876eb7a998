"""A small disk of the server's own, which can be filled."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MEGABYTES = 1500


class Disk:
    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def make(cls, path: Path) -> Disk | None:
        """None where only root could mount one, and this is somebody else."""
        path.mkdir()
        disk = cls(path)
        if sys.platform != "linux" or os.getuid():
            return None
        try:
            disk.mount()
        except subprocess.CalledProcessError:  # root in a container may not
            return None
        return disk

    def mount(self) -> Path:
        if not self.path.is_mount():
            command = ["mount", "-t", "tmpfs", "-o", f"size={MEGABYTES}m", "tmpfs", str(self.path)]
            subprocess.run(command, check=True, capture_output=True)
        server = self.path / "server"
        server.mkdir(exist_ok=True)
        return server

    @contextmanager
    def full(self) -> Iterator[None]:
        filler = self.path / "filler"
        with filler.open("wb", buffering=0) as file:
            try:
                while file.write(b"\0" * 2**20):
                    pass
            except OSError:  # the last byte was sent
                pass
        try:
            yield
        finally:
            filler.unlink()

    def close(self) -> None:
        subprocess.run(["umount", "-l", str(self.path)], check=True, capture_output=True)
