"""Follow a page of the documentation: do what its marked blocks say, in their order, and see what they promise.

A block is marked by a comment in the line before it, which readers don't see:

- ``run``: commands for the first terminal, in which an environment that one of them has activated stays active;
  ``run until it shows``: again and again until the block ``shows`` below comes true;
  ``run at the end``: when everything in the background was interrupted;
- ``background``: commands for another terminal, a new shell; the last one stays there until it is interrupted;
- ``file: PATH``, ``append: PATH``: what is in a file, or goes to its end;
- ``page``: an address, looked at as the user whom the page logs in;
- ``shows``: lines that what ran last has shown; ``…`` stands for anything.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

BLOCK = re.compile(
    r"^<!-- (?P<what>[a-z ]+)(?:: (?P<path>\S+))? -->\n```\w*\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL
)
PATIENCE = 60.0  # seconds; a machine that is idle needs only a moment


@dataclass(frozen=True)
class Block:
    what: str
    path: str
    text: str

    def missing(self, shown: str) -> list[str]:
        """The lines of a ``shows`` that are not in it."""
        return [line for line in self.text.splitlines() if not re.search(_pattern(line), shown)]


def blocks(page: str) -> list[Block]:
    return [Block(match["what"], match["path"] or "", match["text"]) for match in BLOCK.finditer(page)]


def _pattern(line: str) -> str:
    return ".*".join(re.escape(part.strip()) for part in line.split("…"))


@dataclass
class Walkthrough:
    """A reader in a folder, with an environment, who knows how to look at a page of the web."""

    folder: Path
    environment: dict[str, str]
    look: Callable[[str], str]
    shown: str = ""
    last: Block | None = None
    _activations: list[str] = field(default_factory=list)
    _background: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def follow(self, found: list[Block]) -> None:
        """Everything is ended as the page says, also when something on the way there was not as it says."""
        try:
            for block in found:
                if block.what != "run at the end":
                    self._do(block)
        finally:
            statuses = [self._interrupt(process) for process in self._background]
            for block in found:
                if block.what == "run at the end" and self._background:
                    self._run(block)
        # A worker that only Ctrl-C stops exits without an error.
        assert statuses[:1] in ([], [0]), f"the worker ended with {statuses[0]}"

    def _do(self, block: Block) -> None:
        match block.what:
            case "file":
                (self.folder / block.path).write_text(block.text)
            case "append":
                with (self.folder / block.path).open("a") as file:
                    file.write(block.text)
            case "run" | "page":
                self.shown = self._show(block)
            case "run until it shows":
                self.shown = ""
            case "background":
                self._begin(block)
            case "shows":
                self._compare(block)
            case other:
                raise ValueError(f"a block is marked {other!r}, which is none of the marks in this module's docstring")
        if block.what != "shows":
            self.last = block

    def _show(self, block: Block) -> str:
        return self.look(block.text.strip()) if block.what == "page" else self._run(block)

    def _compare(self, block: Block) -> None:
        assert self.last is not None, "nothing was run before"
        until = time.monotonic() + PATIENCE
        while self.last.what == "run until it shows" and block.missing(self.shown) and time.monotonic() < until:
            self.shown = self._run(self.last)
        assert block.missing(self.shown) == [], f"{self.last.text}\nshowed\n{self.shown}"

    def _run(self, block: Block) -> str:
        done = subprocess.run(
            ["bash", "-e", "-c", "".join([*self._activations, block.text])],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE * 5,
            check=False,
        )
        assert done.returncode == 0, f"{block.text}\nended with {done.returncode}:\n{done.stdout}"
        self._activations += [line for line in block.text.splitlines(keepends=True) if line.startswith(". ")]
        return done.stdout

    def _begin(self, block: Block) -> None:
        *before, last = block.text.splitlines()
        path = self.folder / f"background-{len(self._background)}.log"
        with path.open("wb") as log:
            self._background.append(
                subprocess.Popen(
                    ["bash", "-e", "-c", "\n".join([*before, f"exec {last}"])],
                    cwd=self.folder,
                    env=self.environment | {"PYTHONUNBUFFERED": "1"},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )
        # A reader goes on when the program has shown something.
        until = time.monotonic() + PATIENCE
        while not path.stat().st_size and self._background[-1].poll() is None and time.monotonic() < until:
            time.sleep(0.05)

    @staticmethod
    def _interrupt(process: subprocess.Popen[bytes]) -> int:
        """As Ctrl-C does: all processes of the terminal hear it."""
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
        try:
            return process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
