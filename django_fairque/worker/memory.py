"""How much memory a process uses."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")


def resident_mb(pid: int | None = None) -> float:
    """Megabytes in RAM, of this process by default. Where /proc is missing: this process's highest so far."""
    try:
        pages = int(Path(f"/proc/{pid or 'self'}/statm").read_bytes().split()[1])
    except OSError:
        highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return highest / (2**20 if sys.platform == "darwin" else 2**10)
    return pages * _PAGE / 2**20
