"""Engines that are broken on purpose, so that a campaign can be seen to fail: copies of the Lua with one line changed.

The campaign's settings (`project.settings`) let its processes load the copy; `used` lets this process do so, which speaks
for workers that are frozen.
"""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import django_fairque.engine
from django_fairque.engine.scripting import scripts

if TYPE_CHECKING:
    from collections.abc import Iterator


class Change(NamedTuple):
    file: str
    old: str
    new: str


BREAKS = {
    "without a fence": Change(
        "commands/settle.lua", "task.state == 'started' and task.token_text == token_text", "task.state == 'started'"
    ),
    "without a lease": Change("lib/fetch.lua", "    writes.zadd(K['state:started'], lease_end, task.id)\n", ""),
    "forgets dependents": Change("lib/dependents.lua", "      dependents.release(task)\n", ""),
    "forgets a task": Change(
        "lib/queues.lua", "    writes.zadd(keys.normal(user.name), queues.score(task), task.id)\n", ""
    ),
}


def make(name: str, directory: Path) -> Path:
    """A copy of the engine's Lua in ``directory``, broken in the way of that name."""
    change = BREAKS[name]
    copy = directory / "lua"
    shutil.copytree(Path(str(files(django_fairque.engine))) / "lua", copy)
    path = copy / change.file
    text = path.read_text()
    if text.count(change.old) != 1:
        raise RuntimeError(
            f"{change.file} has {change.old.strip()!r} {text.count(change.old)} times, expected once: "
            f"say in tests/lab/campaign/broken_engines.py how to break it now"
        )
    path.write_text(text.replace(change.old, change.new))
    return copy


@contextmanager
def used(lua: Path) -> Iterator[None]:
    """Meanwhile this process calls the engine in that directory."""
    own = scripts._ROOT
    try:
        scripts._ROOT = lua
        _forget_texts()
        yield
    finally:
        scripts._ROOT = own
        _forget_texts()


def _forget_texts() -> None:
    """Let the next call read the files of the engine again."""
    texts = scripts._files, scripts._with_includes, scripts._read_library
    for cached in (scripts.load, scripts.functions, scripts._version, *texts):
        cached.cache_clear()
