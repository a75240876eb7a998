"""Many starters at once, and starters that die."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from django_fairque.embedded import EmbeddedServer
from tests.embedded.helpers import ROOT, only_server_of, starts_in_log

if TYPE_CHECKING:
    from pathlib import Path

    from tests.embedded.conftest import MakeEmbedded


# The race runs in a separate process, because it forks: the starters are ready, and wait at a pipe for their signal.
_RACE = """
import json, os, sys
from pathlib import Path
from django_fairque.embedded.server import EmbeddedServer

def starter(directory, gate):
    os.read(gate, 1)
    code = 1
    try:
        EmbeddedServer(directory).ensure()
        code = 0
    finally:
        os._exit(code)

failed = 0
for directory in sys.argv[1:]:
    gate, signal = os.pipe()
    pids = []
    for _ in range(20):
        if not (pid := os.fork()):
            os.close(signal)
            starter(directory, gate)
        pids.append(pid)
    os.close(signal)
    failed += sum(os.waitpid(pid, 0)[1] != 0 for pid in pids)
    os.close(gate)
print(json.dumps(failed))
"""

# Each starter is killed a little later in its work than the one before; then the server must come up at once.
_KILLED = """
import json, os, signal, sys, time
from django_fairque.embedded.server import EmbeddedServer

served = 0
for moment, directory in enumerate(sys.argv[1:]):
    embedded = EmbeddedServer(directory)
    if not (pid := os.fork()):
        try:
            embedded.ensure()
        finally:
            os._exit(0)
    time.sleep(moment * 0.06 / len(sys.argv))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    embedded.ensure()
    served += 1
print(json.dumps(served))
"""


def run(code: str, directories: list[Path]) -> int:
    command = [sys.executable, "-c", code, *map(str, directories)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return int(json.loads(done.stdout))


def test_twenty_processes_that_start_a_server_at_once_start_only_one(make_embedded: MakeEmbedded) -> None:
    directories = [make_embedded(f"r{number}").directory for number in range(6)]
    assert run(_RACE, directories) == 0
    for directory in directories:
        only_server_of(directory)
        assert starts_in_log(directory) == 1


def test_twenty_processes_that_start_a_server_after_a_crash_start_only_one(make_embedded: MakeEmbedded) -> None:
    embedded = make_embedded()
    embedded.ensure()
    directories = [embedded.directory]
    for round_ in range(2, 4):
        os.kill(only_server_of(embedded.directory), signal.SIGKILL)
        assert run(_RACE, directories) == 0
        only_server_of(embedded.directory)
        assert starts_in_log(embedded.directory) == round_


def test_twenty_threads_that_start_a_server_at_once_start_only_one(embedded: EmbeddedServer) -> None:
    barrier = threading.Barrier(20)
    started: list[bool] = []

    def start() -> None:
        barrier.wait()
        started.append(EmbeddedServer(embedded.directory).start())

    threads = [threading.Thread(target=start) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(started) == [False] * 19 + [True]
    assert starts_in_log(embedded.directory) == 1


@pytest.mark.thorough
def test_processes_killed_while_they_start_a_server_leave_one_server(make_embedded: MakeEmbedded) -> None:
    directories = [make_embedded(f"k{number}").directory for number in range(24)]
    assert run(_KILLED, directories) == len(directories)
    for directory in directories:
        only_server_of(directory)
