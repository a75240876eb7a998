"""Workers report the version of the project's code: the one of the settings, or a digest of the modules with tasks."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING

import pytest

from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.queue.queue import FairQueue
from tests.leases import run_attempts
from tests.worker.conftest import Workers, both_ways, eventually

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.thorough
@both_ways
def test_the_code_version_of_a_worker_changes_with_the_code(workers: Workers, tmp_path: Path) -> None:
    module = tmp_path / "more_tasks.py"
    text = "from django_fairque import task\n\n@task(name='more')\ndef more() -> int:\n    return {}\n"
    versions: list[str] = []
    for source in (text.format(1), text.format(1), text.format(2)):
        module.write_text(source)
        worker = workers.start("--processes", "2", TEST_MORE_TASKS=str(module)).wait_ready(2)
        eventually(lambda: len(workers.queue.workers()) == 2)
        (version,) = {record.info["code_version"] for record in workers.queue.workers()}
        assert re.fullmatch("[0-9a-f]{7}", version)
        versions.append(version)
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0
    first, same, other = versions
    assert first == same != other
    assert [deployment.code_version for deployment in workers.queue.get_stats().deployments] == [first, other]


def test_an_unreadable_module_is_ignored(workers: Workers, tmp_path: Path) -> None:
    module = tmp_path / "more_tasks.py"
    module.write_text(
        "import os, sys\nfrom django_fairque import task\n\n@task(name='more')\ndef more() -> None: ...\n\nos.unlink(__file__)\n"
        "@task(name='elsewhere')\ndef elsewhere() -> None: ...\n\n"
        "def odd() -> None: ...\n\nodd.__module__ = 'nowhere'\ntask(name='odd')(odd)\n__file__ = 7\n"
    )
    workers.start("--processes", "2", start_method="forkserver", TEST_MORE_TASKS=str(module))
    eventually(lambda: len(workers.queue.workers()) == 2)
    assert all(re.fullmatch("[0-9a-f]{7}", record.info["code_version"]) for record in workers.queue.workers())


def test_the_code_version_of_a_worker_can_be_configured(workers: Workers) -> None:
    workers.start(FAIRQUE_CODE_VERSION="v1.2-é <b>").wait_ready()
    eventually(workers.queue.workers)
    assert workers.queue.workers()[0].info["code_version"] == "v1.2-é <b>"
    assert [deployment.code_version for deployment in workers.queue.get_stats().deployments] == ["v1.2-é <b>"]


def test_a_worker_opens_an_incident_about_a_release_that_made_tasks_slower(workers: Workers) -> None:
    for release, took in (("v1", 0.1), ("v2", 0.4)):
        config = QueueConfig()
        config.set_release(release)
        run_attempts(FairQueue(workers.queue.client, config=config), "export", 40, took=took)
    worker = workers.start(FAIRQUE_CODE_VERSION="v2").wait_ready()
    eventually(workers.queue.incidents.recent)
    (incident,) = workers.queue.incidents.recent()
    assert (incident.rule, incident.subject, *incident.objects) == ("release", "v2", "export")
    eventually(lambda: "opened: tasks are slower or fail more since release v2: export: about" in worker.log)
