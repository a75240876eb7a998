"""A reader that has seen enough, such as ``head``, is no error: what prints for it ends quietly."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import IO, cast

import pytest
from django.core.management import load_command_class

from django_fairque.management.base import PrintingCommand
from tests.fixture_types import FairQueue, Server

from .conftest import COMMANDS, MANAGE, Push, Run

DEADLINE = 60.0


def process(server: Server, stdout: int, *words: str, unbuffered: str = "") -> subprocess.Popen[str]:
    """The command as people run it."""
    return subprocess.Popen(
        [sys.executable, str(MANAGE), *words],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        cwd=MANAGE.parent,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered, "FAIRQUE_REDIS__URL": server.url},
    )


def ended(child: subprocess.Popen[str]) -> tuple[int, str]:
    """Return its exit code and its errors."""
    with child:
        errors = child.communicate(timeout=DEADLINE)[1]
    return child.returncode, errors


def unread(server: Server, *words: str, unbuffered: str = "") -> tuple[int, str]:
    """Return how a command ends when nobody reads its output."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        return ended(process(server, writing, *words, unbuffered=unbuffered))
    finally:
        os.close(writing)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("closed", "words"),
    [(">&-", ["fairque_stats"]), ("2>&-", ["fairque_stats"]), ("<&- >&- 2>&-", ["fairque_worker", "--burst"])],
)
def test_a_closed_output_is_no_error(server: Server, queue: FairQueue, closed: str, words: list[str]) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, str(MANAGE), *words],
        capture_output=True,
        text=True,
        cwd=MANAGE.parent,
        env={**os.environ, "FAIRQUE_REDIS__URL": server.url},
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Error" not in done.stderr


def test_all_commands_but_the_worker_end_quietly_when_their_reader_leaves() -> None:
    others = {name for name in COMMANDS if not isinstance(load_command_class("django_fairque", name), PrintingCommand)}
    assert others == {"fairque_worker"}


@pytest.mark.thorough
@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["written at the end", "written meanwhile"])
def test_a_command_ends_quietly_when_nobody_reads_its_output(queue: FairQueue, server: Server, unbuffered: str) -> None:
    assert unread(server, "fairque_acl", unbuffered=unbuffered) == (1, "")


@pytest.mark.thorough
def test_the_exit_code_of_health_is_kept_when_nobody_reads_it(queue: FairQueue, server: Server, run: Run) -> None:
    with pytest.raises(SystemExit) as stop:
        run("fairque_health", "--worker-file", "/nowhere")
    assert stop.value.code == 2
    assert unread(server, "fairque_health", "--worker-file", "/nowhere") == (2, "")


def test_a_command_ends_quietly_when_its_reader_leaves(queue: FairQueue, server: Server, run: Run, push: Push) -> None:
    user = "u" * 200
    for _ in range(1000):
        push(user)
    words = ("fairque_task", "list", "--limit", "1000")
    assert len(run(*words)) > 200_000, "more than a pipe holds"
    child = process(server, subprocess.PIPE, *words)
    with cast("IO[str]", child.stdout) as output:
        assert output.readline().startswith("task ")
        assert user in output.readline()
    assert ended(child) == (1, "")


def test_a_command_ends_quietly_when_nobody_reads_its_errors(queue: FairQueue, server: Server) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    words = [sys.executable, str(MANAGE), "fairque_task", "show", "nobody"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "", "FAIRQUE_REDIS__URL": server.url}
    child = subprocess.run(words, stdout=writing, stderr=writing, env=environment, timeout=DEADLINE, check=False)
    os.close(writing)
    assert child.returncode == 1
