"""Measures the cost of unused features: compares this version with a copy that lacks the code of these features.

Both send, fetch, run and finish the same tasks, each in a separate process, by turns, on one server. Instructions of the
interpreter and commands of the server are counted; these counts do not depend on the machine or its load
(`test_features.py` holds them). Processor time is measured as well.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.counting import commands, counted
from tests.servers import Server

from .processes import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import FrameType

    from typing_extensions import Self

    from .table import Table

LEFT_OUT: dict[str, list[tuple[str, str, str]]] = {
    "middleware": [
        (
            "tasks/sending.py",
            "if config.tracing or config.middleware or options.middleware:\n        with around_sending(",
            "if config.tracing:\n        with around_sending(",
        ),
        ("tasks/execution.py", "if first.services.middleware or definition.options.middleware:", "if False:"),
    ],
    "argument types": [
        ("tasks/definition.py", "(args, kwargs) if self.types is None else self._dump(args, kwargs, bound)", "(args, kwargs)"),
        ("tasks/execution.py", "return load_arguments(definition, args, kwargs)", "return args, kwargs"),
        ("tasks/execution.py", "if run.definition.types is not None:", "if False:"),
    ],
    "signatures": [
        (
            "engine/pushing/push.py",
            """\
    prefix, queue, secret = commands.config.prefix, commands.name, commands.config.signing_key.read()
    key = None if secret is None else prepared_key(secret)
""",
            "",
        ),
        ("engine/pushing/push.py", "if task.signature is not None:", "if False:"),
        ("engine/pushing/push.py", "elif key is not None:", "elif False:"),
        ("tasks/execution.py", 'if services.signing != "off":', "if False:"),
        ("engine/model/lease.py", "split_signature(self._values[4])", 'self._values[4], b""'),
    ],
    "limits of users": [
        ("engine/lua/lib/ring.lua", "one.paused or one.held) and (not one.cap or one.run < one.cap)", "one.paused)"),
        ("engine/lua/lib/charges.lua", "expected_cost(user)\n  rate.forget_step(user)", "expected_cost(user)"),
        ("engine/lua/lib/charges.lua", "if user.gap then -- a token bucket", "if false then -- a token bucket"),
        ("engine/lua/lib/charges.lua", "    rate.give_token_back(user, task.started or clock.now)\n", ""),
        (
            "engine/lua/lib/push_decide.lua",
            "local limit = user.backlog or (options.max_backlog > 0 and options.max_backlog)",
            "local limit",
        ),
        (
            "engine/lua/lib/push_decide.lua",
            "local most_bytes = user.max_bytes or (options.max_backlog_bytes > 0 and options.max_backlog_bytes)",
            "local most_bytes",
        ),
    ],
}  # fmt: skip
"""For each feature, the code that a task which does not use it passes: file, text, and the text without the feature."""

STEPS = ("enqueue", "fetch", "run", "finish")
TASKS, ROUNDS = 200, 30
"""Tasks of one round, and rounds of each version."""


def copy_without(features: Iterable[str], directory: Path) -> Path:
    """Copy the package into ``directory`` without the code of these features, and return ``directory``.

    Raises:
        ValueError: a text that is to be replaced is not there exactly once.
    """
    package = directory / "django_fairque"
    shutil.copytree(ROOT / "django_fairque", package, ignore=shutil.ignore_patterns("__pycache__"))
    for feature in features:
        for name, text, replacement in LEFT_OUT[feature]:
            file = package / name
            source = file.read_text()
            if source.count(text) != 1:
                raise ValueError(f"{feature}: expected once in {name}, found {source.count(text)} times: {text}")
            file.write_text(source.replace(text, replacement))
    return directory


class Version:
    """A process that runs tasks with the package in this directory; a context manager."""

    def __init__(self, directory: Path, server: Server) -> None:
        self._directory = directory
        variables = {
            "PYTHONPATH": f"{directory}{os.pathsep}{ROOT}",
            "DJANGO_SETTINGS_MODULE": "tests.lab.benchmarks.project.settings",
            "BENCHMARK_SERVER": server.url,
            "BENCHMARK_SIGNING": "off",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.lab.benchmarks.features"],
            cwd=directory,
            env={**os.environ, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        package = Path(self.request("package"))
        if package != self._directory / "django_fairque":
            raise RuntimeError(f"expected to measure the version in {self._directory}, but {package} was imported")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def request(self, what: str) -> Any:
        """``count``: instructions and server commands of each step; ``lines``: the files and lines that a task passes;
        ``measure``: microseconds of processor time of a task, here and on the server."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


def run(table: Table, *, quick: bool) -> None:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fairque-benchmarks-")))
        server = stack.enter_context(Server())  # one for both: two processes of a server are not equally fast
        directories = (ROOT, copy_without(LEFT_OUT, directory.resolve()))
        versions = [stack.enter_context(Version(directory, server)) for directory in directories]
        whole, without = (version.request("count") for version in versions)
        for what in ("instructions", "server commands"):
            for step in STEPS:
                name = f"{what} of {step}"
                table.add(name, whole[what][step])
                table.add("  without the code of unused features", without[what][step])
            ratio = sum(whole[what].values()) / sum(without[what].values())
            table.add(f"{what} of a task over those without that code", ratio, "×", "≤ 1.02 ×")
        rounds = []
        for number in range(6 if quick else ROUNDS):
            order = versions if number % 2 else versions[::-1]
            times = {version: version.request("measure") for version in order}
            rounds.append([times[version] for version in versions])
        for what in ("client and worker", "server"):
            mine, others = ([pair[side][what] for pair in rounds] for side in (0, 1))
            table.add(f"processor time of a task, {what}", mine, "µs")
            table.add("  without the code of unused features", others, "µs")
            ratios = [one / other for one, other in zip(mine, others, strict=True)]
            table.add("  the former over the latter", ratios, "×", "≤ 1.02 ×")


# --- in the process of one version ---


def instructions(call: Callable[[], Any]) -> int:
    """Count the interpreter's instructions of a call in this thread; from Python 3.12 on, some are not counted."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        if event == "call":
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "opcode":
            count += 1
        return trace

    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(None)
    return count


def lines(call: Callable[[], Any]) -> set[tuple[str, int]]:
    """The files and lines that a call passes in this thread."""
    found: set[tuple[str, int]] = set()

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if event == "line":
            found.add((frame.f_code.co_filename, frame.f_lineno))
        return trace

    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(None)
    return found


class Steps:
    """The steps of a task's life, one after the other."""

    def __init__(self) -> None:
        from django_fairque.conf import get_queue
        from django_fairque.tasks.execution import Services
        from tests.lab.benchmarks.project.tasks import noop

        self.queue = get_queue()
        self._services = Services(self.queue.name, self.queue.config, self.queue.set_progress)
        self._noop, self._text = noop, "x" * 180
        self._lease: Any = None
        self._outcome: Any = None

    def enqueue(self) -> None:
        self._noop.enqueue(self._text)

    def fetch(self) -> None:
        self._lease = self.queue.pop("w")

    def run(self) -> None:
        from django_fairque.tasks.execution import execute, prepare

        self._outcome = execute(prepare(self._lease, self._services))  # type: ignore[arg-type] # the task can run

    def finish(self) -> None:
        self.queue.settle([self._outcome])

    def all(self, times: int) -> None:
        for _ in range(times):
            for step in STEPS:
                getattr(self, step)()

    def count(self) -> dict[str, dict[str, int]]:
        """Once everything is loaded. Of each step the least of some: another thread may have run meanwhile."""
        self.all(20)
        redis: Any = self.queue.client
        found = {step: ([], []) for step in STEPS}  # type: ignore[var-annotated]
        for _ in range(5):
            for step in STEPS:
                found[step][0].append(instructions(getattr(self, step)))
        for _ in range(5):
            for step in STEPS:
                found[step][1].append(commands(redis, getattr(self, step)))
        kinds = ("instructions", "server commands")
        return {kind: {step: min(found[step][at]) for step in STEPS} for at, kind in enumerate(kinds)}

    def passed_lines(self) -> list[tuple[str, int]]:
        self.all(20)
        return sorted(lines(lambda: self.all(1)))

    def measure(self) -> dict[str, float]:
        redis: Any = self.queue.client
        started = time.process_time()
        stats = counted(redis, lambda: self.all(TASKS))
        here = (time.process_time() - started) / TASKS * 1e6
        return {"client and worker": here, "server": stats["fcall"]["usec"] / TASKS}


def main() -> None:
    import django

    import django_fairque

    django.setup()
    steps = Steps()
    answers: dict[str, Callable[[], Any]] = {
        "package": lambda: str(Path(django_fairque.__file__).parent),
        "count": steps.count,
        "lines": steps.passed_lines,
        "measure": steps.measure,
    }
    for line in sys.stdin:
        print(json.dumps(answers[line.strip()]()), flush=True)


if __name__ == "__main__":
    main()
