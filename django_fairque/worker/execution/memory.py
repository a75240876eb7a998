"""How much memory a process uses."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

BYTES_PER_MB = 2**20
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_mb(pid: int | None = None) -> float:
    """Megabytes in RAM, of this process by default. Where /proc is missing: this process's highest so far."""
    try:
        pages = int(Path(f"/proc/{pid or 'self'}/statm").read_bytes().split()[1])
    except OSError:
        highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return highest / (2**20 if sys.platform == "darwin" else 2**10)
    return pages * _PAGE_BYTES / 2**20


def limit_allocation(size: int) -> None:
    """Let this process allocate at most twice ``size`` bytes from here on: one large allocation is a `MemoryError` then, before
    anybody could see what the process uses. Linux only.
    """
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return
    now = next((int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmData:")), None)
    if now is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        wanted = now + 2 * size
        resource.setrlimit(
            resource.RLIMIT_DATA, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard)
        )
