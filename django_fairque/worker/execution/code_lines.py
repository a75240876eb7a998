"""Finds the line of the project's code that a thread or a coroutine runs, as text: ``shop/tasks.py:30 wait_for_a_lock``.

The text has names of files and functions only, never values of variables. But a task may create code objects with any
text as a name, so the names are not to be trusted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from types import CoroutineType, FrameType, GeneratorType
from typing import Any

MAX_FRAMES = 200
"""Maximum number of stack frames that are examined, and of coroutines that await each other."""
MAX_PATH_CHARACTERS, MAX_FUNCTION_CHARACTERS = 60, 48
_LIBRARY_FOLDERS = tuple(f"{folder}{os.sep}" for folder in (Path(os.__file__).parent, Path(__file__).parents[2]))
"""The folders of the standard library and of this package."""
_PACKAGE_FOLDERS = {"site-packages", "dist-packages"}


def find_thread_line(frame: FrameType | None) -> str:
    """Return the line of the project's code that a thread runs, where ``frame`` is the thread's innermost frame; empty
    if it has none.
    """
    return _describe(_walk(frame, None))


def find_coroutine_line(coroutine: Any, loop_frame: FrameType | None) -> str:
    """Return the line that a coroutine awaits or runs; empty if the coroutine has ended.

    ``loop_frame`` is the innermost frame of the loop's thread. For a running coroutine, the search begins there,
    because the coroutine may have called functions.
    """
    if type(coroutine) is CoroutineType and coroutine.cr_running:
        return _describe(_walk(loop_frame, coroutine.cr_frame))
    return _describe(reversed(list(_follow(coroutine))))


def _walk(frame: FrameType | None, last: FrameType | None) -> Iterator[FrameType]:
    """Yield the frame and its callers, up to ``last``."""
    for _ in range(MAX_FRAMES):
        if frame is None:
            return
        yield frame
        if frame is last:
            return
        frame = frame.f_back


def _follow(awaited: Any) -> Iterator[FrameType]:
    """Yield the frame of a suspended coroutine, then the frame of the coroutine that it awaits, and so on.

    Types are compared with ``is``, because `isinstance` could call code of the project's awaitable objects.
    """
    for _ in range(MAX_FRAMES):
        if type(awaited) is CoroutineType:
            frame, awaited = awaited.cr_frame, awaited.cr_await
        elif type(awaited) is GeneratorType:
            frame, awaited = awaited.gi_frame, awaited.gi_yieldfrom
        else:
            return
        if frame is None:
            return
        yield frame


def _describe(frames: Iterable[FrameType]) -> str:
    """Describe the first frame that belongs to the project's code; if there is none, the first frame."""
    innermost: FrameType | None = None
    for frame in frames:
        if _locate(str.__str__(frame.f_code.co_filename))[1]:
            return _format(frame)
        innermost = innermost or frame
    return "" if innermost is None else _format(innermost)


def _format(frame: FrameType) -> str:
    code = frame.f_code
    path = _locate(str.__str__(code.co_filename))[0]
    function = str.__str__(code.co_name)
    if len(path) > MAX_PATH_CHARACTERS:
        path = "…" + path[1 - MAX_PATH_CHARACTERS :]
    if len(function) > MAX_FUNCTION_CHARACTERS:
        function = function[: MAX_FUNCTION_CHARACTERS - 1] + "…"
    return f"{path}:{frame.f_lineno or code.co_firstlineno} {function}"


@lru_cache(maxsize=1024)
def _locate(path: str) -> tuple[str, bool]:
    """Return the path of a file below the folder that Python imports it from, and whether the file belongs to the
    project.

    For a file outside of the import folders only the file's name is returned, because a path would reveal the folders
    of the machine.
    """
    folders = [entry.rstrip(os.sep) + os.sep for entry in sys.path if isinstance(entry, str) and len(entry) > 1]
    folder = max((folder for folder in folders if path.startswith(folder)), key=len, default="")
    shown = path[len(folder) :] if folder else Path(path).name
    is_library = path.startswith(("<", *_LIBRARY_FOLDERS)) or not _PACKAGE_FOLDERS.isdisjoint(Path(path).parts)
    return shown, not is_library
