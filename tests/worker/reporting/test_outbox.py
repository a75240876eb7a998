"""The outbox between processes that die: nothing that was committed is lost, nothing happens twice."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection

from django_fairque.models import OutboxEntry
from tests.worker.conftest import ROOT, Workers, eventually
from tests.worker.project.tasks import STARTED
from tests.worker.reporting.dying import DELIVERED, STEPS, UNCOMMITTED

if TYPE_CHECKING:
    from pathlib import Path

    from redis import Redis

    from tests.servers import Server

pytestmark = pytest.mark.django_db(transaction=True)
"""On PostgreSQL, the tests' own database is emptied after each test: a worker may be killed before it has removed its rows."""


@pytest.fixture(scope="module")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of SQLite with all tables, for copies: migrating takes longer than most of a test."""
    path = tmp_path_factory.mktemp("migrated") / "db.sqlite3"
    environment = {"TEST_DATABASE": str(path), "FAIRQUE_OUTBOX": "true"}
    assert run(environment, "-m", "django", "migrate", "--verbosity", "0").returncode == 0
    with sqlite3.connect(path) as file:
        file.execute("PRAGMA journal_mode=WAL")
    file.close()
    return path


@pytest.fixture
def database(tmp_path: Path, request: pytest.FixtureRequest) -> dict[str, str]:
    """The environment of processes that share a database with an outbox: the tests' own, or a file of this test."""
    if connection.vendor == "sqlite":
        place = {"TEST_DATABASE": shutil.copy(request.getfixturevalue("migrated"), tmp_path / "db.sqlite3")}
    else:
        engine, name = connection.settings_dict["ENGINE"], connection.settings_dict["NAME"]
        place = {"TEST_DATABASE_ENGINE": str(engine), "TEST_DATABASE": str(name)}
    return {**{name: str(value) for name, value in place.items()}, "FAIRQUE_OUTBOX": "true"}


def run(environment: dict[str, str], *arguments: str, server: Server | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "tests.worker.project.settings",
            "PYTHONPATH": str(ROOT),
            "TEST_SERVER": server.url if server else "unix:///nowhere.sock",
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
    )


def begun(redis: Redis) -> list[str]:
    """Each time that a task began."""
    lines: Any = redis.lrange(STARTED, 0, -1)
    return sorted(line.decode().split(" ")[2] for line in lines)


def test_a_worker_that_is_started_before_migrate_has_no_outbox(workers: Workers, tmp_path: Path) -> None:
    if connection.vendor != "sqlite":
        pytest.skip("the tests' database is migrated")
    environment = {"TEST_DATABASE": str(tmp_path / "db.sqlite3"), "FAIRQUE_OUTBOX": "true"}
    refused = workers.start("--burst", **environment)
    assert refused.wait() == 1
    assert refused.log.splitlines()[-1] == (
        "CommandError: OUTBOX is on, and no database has the table of the outbox: run manage.py migrate, then start the worker"
    )
    assert "unapplied migration(s)" in refused.log
    assert run(environment, "-m", "django", "migrate", "--verbosity", "0").returncode == 0
    assert workers.start("--burst", **environment).wait() == 0


ALL_STEPS = [*STEPS, "before the commit", "after all"]
QUICK_STEPS = ("before the commit", "after the queue has them", "before the rows are removed")
"""One of each outcome: nothing is sent, it is sent and known to be, and it is sent again. The others are slow tests."""


@pytest.mark.parametrize(
    "step", [step if step in QUICK_STEPS else pytest.param(step, marks=pytest.mark.slow) for step in ALL_STEPS]
)
def test_a_process_that_dies_at_any_step_of_the_outbox_loses_no_task(
    step: str, server: Server, workers: Workers, database: dict[str, str]
) -> None:
    done = run(database, "-m", "tests.worker.reporting.dying", step, server=server)
    assert done.returncode == -signal.SIGKILL, done.stderr
    if step in DELIVERED:  # these rows are relayed again when their tasks have run
        assert workers.start("--burst", **{**database, "FAIRQUE_OUTBOX": "false"}).wait() == 0
        assert begun(workers.redis) == ["0", "1", "2"]
    assert workers.start("--burst", **database).wait() == 0
    assert begun(workers.redis) == ([] if step in UNCOMMITTED else ["0", "1", "2"])


def test_a_worker_relays_rows_of_dead_processes(server: Server, workers: Workers, database: dict[str, str]) -> None:
    workers.start(**database).wait_ready()
    run(database, "-m", "tests.worker.reporting.dying", "before the rows are read", server=server)
    eventually(lambda: begun(workers.redis) == ["0", "1", "2"])


def test_a_worker_without_the_outbox_table_runs_and_logs_that(workers: Workers, tmp_path: Path) -> None:
    place = {"TEST_DATABASE_ENGINE": "django.db.backends.sqlite3", "TEST_DATABASE": str(tmp_path / "db.sqlite3")}
    assert run(place, "-m", "django", "migrate", "--verbosity", "0").returncode == 0
    worker = workers.start(FAIRQUE_OUTBOX="true", **place).wait_ready()
    with sqlite3.connect(place["TEST_DATABASE"]) as file:
        file.execute(f"DROP TABLE {OutboxEntry._meta.db_table}")
    file.close()
    eventually(lambda: "the outbox of database 'default' can't be relayed for now" in worker.log)
    assert worker.stop() == 0
