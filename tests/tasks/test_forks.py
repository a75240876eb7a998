"""Forks of a process that has used the package: by Python's `os.fork`, and by C code without Python's hooks, as uWSGI makes
them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixture_types import FairQueue, Redis, Server

ROOT = Path(__file__).parent.parent.parent
PROGRAM = """
import ctypes, json, os, signal, sys, threading
import django
from django.conf import settings

fork = os.fork if sys.argv[1] == "python" else ctypes.PyDLL(None).fork
parent, ends = os.getpid(), []

class Provider:
    def __init__(self):
        self.made_in = os.getpid()
        if self.made_in == parent and not ends:  # a lock is held while a client is made
            copy("early 1")
            copy("early 2")

    def get_credentials(self):
        return "default", ""

apps = ["django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes", "django_fairque", "tests.worker.project"]
settings.configure(SECRET_KEY="x" * 50, INSTALLED_APPS=apps, FAIRQUE={
    "REDIS": {"URL": os.environ["TEST_SERVER"], "CREDENTIAL_PROVIDER": Provider},
})
django.setup()
from django_fairque.admin.page_queues import page_client
from django_fairque.conf import get_queue
from django_fairque.engine.model.ids import new_nonce
from django_fairque.engine.model.records import EventCount
from django_fairque.monitoring.probe import Probe
from django_fairque.tasks.transactions import after_commit
from tests.worker.project.tasks import noop

probe = Probe(lambda queue: os.getpid(), keep_seconds=60)

def use(name):
    # Print the ids, nonces and connections of this process as one line.
    ids = [noop.enqueue(number).id for number in range(20)]
    ids += [result.id for result in noop.enqueue_many([((number,), {}) for number in range(20)])]
    print(json.dumps({
        "name": name,
        "ids": ids,
        "nonces": [new_nonce() for _ in range(20)],
        "clients": [get_queue().client.client_id(), page_client().client_id()],
        "provider": [get_queue().client.connection_pool.connection_kwargs["credential_provider"]._provider.made_in],
        "counted": sorted(after_commit.take_event_counts("default")),
        "read_by": list(probe.read(30).readings.values()),
        "pid": os.getpid(),
    }), flush=True)

def copy(name):
    for thread in threading.enumerate():  # Python allows no thread that wants to run during a fork that it does not know
        if thread is not threading.current_thread():
            thread.join()
    if not (child := fork()):
        signal.alarm(30)  # if it waits for a lock that nobody will give back
        use(name)
        os._exit(0)
    ends.append(os.waitpid(child, 0)[1])

after_commit.keep_event_counts("default", {"audit": EventCount()})
noop.enqueue(-1), page_client().ping(), probe.read(30)
copy("late 1")
copy("late 2")
use("parent")
print(json.dumps({"ends": ends}), flush=True)
"""


@pytest.mark.thorough
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("kind", ["python", "C"])
def test_forked_processes_share_no_ids_and_no_connections(server: Server, redis: Redis, kind: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, kind],
        env={**os.environ, "TEST_SERVER": server.url, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *used, end = [json.loads(line) for line in done.stdout.splitlines()]
    assert end == {"ends": [0] * 4}, done.stderr
    assert [process["name"] for process in used] == ["early 1", "early 2", "late 1", "late 2", "parent"]
    for what in ("ids", "nonces", "clients"):
        found = [one for process in used for one in process[what]]
        assert len(set(found)) == len(found), f"two processes have the same {what}"
    assert FairQueue(redis).get_stats().states["queued"] == 5 * 40 + 1
    assert [process["read_by"] for process in used] == [[process["pid"]] for process in used]
    assert [process["provider"] for process in used] == [[process["pid"]] for process in used]
    assert [process["name"] for process in used if process["counted"]] == ["parent"]
