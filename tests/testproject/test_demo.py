"""The demonstration as a person runs it: another process, real workers, a few small packages."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import time
import weakref
from typing import TYPE_CHECKING

import psutil
import pytest
from library.interruption import noted_signals, raise_if_interrupted
from library.sources import packages, standard_library

from .conftest import LIMIT

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    from django_fairque import FairQueue

    from .conftest import StartDemo

pytestmark = pytest.mark.thorough


def documents(database: Path) -> dict[tuple[str, str], int]:
    """Return the number of documents by owner and status."""
    query = "SELECT owner, status, COUNT(*) FROM library_document GROUP BY owner, status"
    connection = sqlite3.connect(database)
    try:
        return {(owner, status): count for owner, status, count in connection.execute(query)}
    finally:
        connection.close()


def row(out: str, user: str) -> list[str]:
    """The cells of a user's row in the table."""
    (line,) = re.findall(rf"^{re.escape(user)} .*×$", out, flags=re.MULTILINE)
    return re.split(r" {2,}", line)


@pytest.mark.slow
def test_the_demonstration_analyses_every_document_and_prints_every_user_repeatedly(
    demo: Callable[..., tuple[int, str, str]], database: Path, queue: FairQueue
) -> None:
    files = packages(standard_library(), ["json", "html"])
    expected = {(owner, "analysed"): len(paths) for owner, paths in files.items()}
    for noisy in ("0", "1500"):
        code, out, err = demo("--packages", "json,html", "--noisy", noisy)
        assert (code, err) == (0, "")
        assert documents(database) == expected
        for owner, paths in files.items():
            assert row(out, owner)[1] == str(len(paths))
        assert "instead of" in out
        assert "runserver" in out
    assert row(out, "noisy")[1] == "1,500"
    assert out.index("noisy ") < out.index("json ")
    assert (row(out, "nightly job")[1], row(out, "urgent mails")[1]) == ("150", "2")
    assert queue.check_invariants() == []
    stats = queue.get_stats()
    assert stats.totals["finished"] == 2 * sum(expected.values()) + 1500 + 150 + 2
    assert {lane: figures.started for lane, figures in stats.lanes.items() if lane != "normal"} == {
        "urgent": 2,
        "bulk": 150,
    }


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--packages", "json,jsn"], 1, "no source files of jsn"),
        (["--processes", "0"], 2, "expected a whole number, at least 1, got '0'"),
    ],
)
def test_wrong_arguments_of_the_demonstration_are_explained(
    demo: Callable[..., tuple[int, str, str]], arguments: list[str], code: int, message: str
) -> None:
    ended, _, err = demo(*arguments)
    assert ended == code
    assert message in err
    assert "Traceback" not in err


class TestCutShort:
    @pytest.fixture
    def process(self, start_demo: StartDemo, queue: FairQueue) -> subprocess.Popen[str]:
        """One in the middle of more work than it can have done."""
        process = start_demo("--packages", "json", "--noisy", "60000")
        wait_until(lambda: queue.get_stats().totals.get("finished", 0) > 0, process)
        return process

    @pytest.fixture
    def worker(self, process: subprocess.Popen[str]) -> psutil.Process:
        (supervisor,) = [
            child for child in psutil.Process(process.pid).children() if "fairque_worker" in " ".join(child.cmdline())
        ]
        return supervisor

    @pytest.mark.parametrize("how", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
    def test_an_interrupted_demonstration_stops_its_workers(
        self, process: subprocess.Popen[str], worker: psutil.Process, how: signal.Signals, queue: FairQueue
    ) -> None:
        family = [worker, *worker.children(recursive=True)]
        process.send_signal(how)
        _, err = process.communicate(timeout=LIMIT)
        assert process.returncode == 130, err
        assert "CommandError: Interrupted. What is left stays" in err
        assert "Traceback" not in err
        wait_until(lambda: not any(map(lives, family)))
        assert queue.get_stats().states["started"] == 0
        assert queue.check_invariants() == []

    def test_demonstrations_report_a_dead_worker(self, process: subprocess.Popen[str], worker: psutil.Process) -> None:
        worker.kill()
        _, err = process.communicate(timeout=LIMIT)
        assert process.returncode == 1, err
        assert "the worker ended with exit code -9" in err


def test_ctrl_c_during_a_finalizer_is_not_lost() -> None:
    class Anything:
        pass

    with noted_signals():
        collected = Anything()
        weakref.finalize(collected, os.kill, os.getpid(), signal.SIGINT)
        del collected
        with pytest.raises(KeyboardInterrupt):
            raise_if_interrupted()


def lives(process: psutil.Process) -> bool:
    """Not as a zombie: where the tests run, nobody may care for orphans."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str] | None = None) -> None:
    """Meanwhile ``process`` must go on."""
    give_up = time.monotonic() + LIMIT
    while not condition():
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < give_up
        time.sleep(0.05)
