"""The line of a thread or a coroutine names the innermost function of the project, and nothing of the machine."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from django_fairque.engine.inspection.worker_activity import MAX_LINE_CHARACTERS
from django_fairque.worker.execution.code_lines import find_coroutine_line, find_thread_line
from tests.worker.conftest import eventually

HERE = "tests/worker/execution/test_code_lines.py"
release = threading.Event()


class Text(str):
    """A text that calls code of the project when it is formatted, measured or cut."""

    __slots__ = ()

    def __format__(self, spec: str) -> str:
        raise RuntimeError

    __len__ = __hash__ = __getitem__ = __str__ = startswith = __format__  # type: ignore[assignment]


def wait() -> None:
    release.wait()


def wait_at(path: str, name: str = "wait") -> Callable[[], None]:
    """Return the function `wait` as if it came from another file."""
    return FunctionType(wait.__code__.replace(co_filename=path, co_name=name), globals())


def line_number(text: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.strip() == text)


WAITS = line_number("release.wait()")


@pytest.fixture
def line_of() -> Iterator[Callable[[Callable[[], Any]], str]]:
    """Start a function in a thread, and return its line once it waits in the standard library."""
    threads: list[threading.Thread] = []

    def innermost_file(thread: threading.Thread) -> str:
        frame = sys._current_frames().get(thread.ident or 0)
        return "" if frame is None else frame.f_code.co_filename

    def line_of(function: Callable[[], Any]) -> str:
        thread = threading.Thread(target=function, name="waits")
        threads.append(thread)
        thread.start()
        eventually(lambda: release._cond._waiters and innermost_file(thread) == threading.__file__)  # type: ignore[attr-defined]
        return find_thread_line(sys._current_frames()[thread.ident or 0])

    yield line_of
    release.set()
    for thread in threads:
        thread.join()
    release.clear()


LineOf = Callable[[Callable[[], Any]], str]


def test_a_wait_in_the_standard_library_has_the_line_of_the_function_that_waits(line_of: LineOf) -> None:
    assert line_of(wait) == f"{HERE}:{WAITS} wait"


def test_an_installed_library_is_passed_over(line_of: LineOf) -> None:
    library = wait_at("/srv/venv/lib/python3.11/site-packages/redis/client.py")

    def call() -> None:
        library()

    assert line_of(call) == f"{HERE}:{line_number('library()')} call"


def test_a_path_is_shown_without_the_folders_of_the_machine(line_of: LineOf, monkeypatch: pytest.MonkeyPatch) -> None:
    assert line_of(wait_at("/home/ann/secret/one.py")) == f"one.py:{WAITS} wait"
    monkeypatch.setattr(sys, "path", ["/", "/home", "/home/bob/shop/", Path("/home/bob/shop/app"), *sys.path])
    assert line_of(wait_at("/home/bob/shop/app/two.py")) == f"app/two.py:{WAITS} wait"


@pytest.mark.parametrize("text", [str, Text])
def test_names_of_any_text_are_shortened(line_of: LineOf, text: type[str]) -> None:
    line = line_of(wait_at(text("/x/" + "<b>\n" * 10_000), text("\udcff" * 10_000)))
    assert line.startswith("…b>")
    assert f":{WAITS} \udcff" in line
    assert len(line) <= MAX_LINE_CHARACTERS


class Awaitable:
    """An object that can be awaited, with hostile attributes."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise RuntimeError

    def __await__(self) -> Any:
        return self

    def __next__(self) -> None:
        """Return control to the event loop."""


async def await_object() -> None:
    await Awaitable()


async def call_function() -> None:
    wait()


def test_a_coroutine_has_the_line_of_the_innermost_coroutine_that_it_awaits(line_of: LineOf) -> None:
    async def outer(inner: Callable[[], Any]) -> None:
        await inner()

    suspended = outer(await_object)
    assert find_coroutine_line(suspended, None).startswith(f"{HERE}:"), "it has not begun"
    suspended.send(None)
    assert find_coroutine_line(suspended, None) == f"{HERE}:{line_number('await Awaitable()')} await_object"
    suspended.close()
    assert find_coroutine_line(suspended, None) == ""
    # This one blocks its loop in a function.
    running = outer(call_function)
    line_of(partial(asyncio.run, running))
    stacks = sys._current_frames().values()
    lines = {find_coroutine_line(running, frame) for frame in stacks}
    assert f"{HERE}:{WAITS} wait" in lines


def test_the_deepest_recursion_is_cut() -> None:
    async def recurse(depth: int) -> None:
        if depth:
            await recurse(depth - 1)
        await Awaitable()

    suspended = recurse(400)
    suspended.send(None)
    assert find_coroutine_line(suspended, None).endswith(" recurse")
    suspended.close()
