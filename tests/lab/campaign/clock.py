"""A clock of the server's own, which can be set."""

from __future__ import annotations

from pathlib import Path

LIBRARIES = ("libfaketimeMT.so.1", "libfaketime.so.1")


class Clock:
    """Debian's libfaketime, loaded into the server, which looks once a second whether its clock was set."""

    def __init__(self, library: Path, file: Path) -> None:
        self._file = file
        self.step(0)
        self.environment = {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    @classmethod
    def make(cls, file: Path) -> Clock | None:
        """None where the library is not installed."""
        for name in LIBRARIES:
            for library in Path("/usr/lib").glob(f"*/faketime/{name}"):
                return cls(library, file)
        return None

    def step(self, seconds: float) -> None:
        """Let it go wrong by so much. In one step: a file that is being written would be read as no step at all."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{seconds:+g}")
        new.replace(self._file)
