"""A worker's output never holds payloads, arguments, results, or the password of its server, whatever happens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.queue import FairQueue
from tests.stored_tasks import replace_payload
from tests.worker.conftest import WorkerProcess, eventually

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeServer

SECRET = "s3cret-7f1e"
PASSWORD = "p4ssword-91ac"

PAYLOADS: list[tuple[str, object]] = [
    ("noop", {"args": [SECRET], "kwargs": {}}),
    ("add", {"args": [SECRET, SECRET], "kwargs": {}}),  # the sum of the secrets is the result
    ("add", {"args": [SECRET, 1], "kwargs": {}}),  # the task raises a TypeError
    ("add", {"args": [SECRET], "kwargs": {}}),  # a call that does not fit
    ("add", {"args": SECRET, "kwargs": {}}),  # a payload that does not fit
    ("add_async", {"args": [SECRET, SECRET], "kwargs": {}}),
    ("index", {"args": [SECRET], "kwargs": {}}),
    ("nobody.knows.it", {"args": [SECRET], "kwargs": {}}),
    ("", {"bare": SECRET}),
    ("", SECRET),
]
RAW = [
    b'{"%s":1,"%s":2}' % (SECRET.encode(), SECRET.encode()),
    b'{"args":[%s],"kwargs":{}}' % SECRET.encode(),
    b'"%s' % SECRET.encode(),
    b"%s\xff" % SECRET.encode(),
    b'{"args":["%s"],"kwargs":{}}\x1e%s' % (SECRET.encode(), SECRET.encode()),
    b"[" * 50_000 + SECRET.encode(),
]


@pytest.mark.thorough
@pytest.mark.parametrize("signing", ["on", pytest.param("off", marks=pytest.mark.slow)])
def test_payloads_results_and_passwords_are_not_logged(make_server: MakeServer, tmp_path: Path, signing: str) -> None:
    server = make_server("--user", "app", "on", f">{PASSWORD}", "~*", "&*", "+@all")
    url = server.url.replace("unix://", f"unix://app:{PASSWORD}@")
    with server.client() as client:
        queue = FairQueue(client)
        tasks = [Task.create("u", 3, payload, name=name, max_retries=1) for name, payload in PAYLOADS]
        queue.push_batch(tasks)
        for raw in RAW:
            spoilt = Task.create("u", 3, None, name="add", max_retries=0)
            queue.push(spoilt)
            replace_payload(client, spoilt.task_id, raw)
            tasks.append(spoilt)
        with WorkerProcess(
            server, tmp_path, "--verbosity", "3", TEST_SERVER=url, FAIRQUE_SIGNING=signing, PYTHONASYNCIODEBUG="1"
        ) as worker:
            worker.wait_ready()
            eventually(lambda: all(queue.get_task(task.task_id).state.value != "queued" for task in tasks))
            eventually(lambda: queue.dlq.count() >= len(RAW))
            eventually(lambda: all(queue.get_task(task.task_id).state.value != "started" for task in tasks))
            server.kill()
            eventually(lambda: "can't be reached" in worker.log)
            server.start()
            assert worker.stop() == 0
    assert "failed for good" in worker.log  # the log has a line about the failure
    assert SECRET not in worker.log
    assert PASSWORD not in worker.log


def test_a_refused_password_is_not_logged(make_server: MakeServer, tmp_path: Path) -> None:
    server = make_server("--user", "app", "on", ">another", "~*", "&*", "+@all")
    url = server.url.replace("unix://", f"unix://app:{PASSWORD}@")
    with WorkerProcess(server, tmp_path, TEST_SERVER=url) as worker:
        eventually(lambda: "ERROR" in worker.log or "rror" in worker.log)
    assert "password" in worker.log  # the error of the server is logged
    assert PASSWORD not in worker.log
