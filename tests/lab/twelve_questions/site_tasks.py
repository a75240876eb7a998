"""The tasks of the site, which depend on the release. Each run adds an entry to a list: the program's own count of runs."""

from __future__ import annotations

import os
import time

from django_fairque import task
from tests.lab.twelve_questions import BAD, RUNS
from tests.worker.project.tasks import record

RELEASE = os.environ["FAIRQUE_CODE_VERSION"]


def run(seconds: float) -> None:
    begun = time.time()
    time.sleep(seconds)
    record(RUNS, f"{RELEASE} {begun} {time.time()}")


@task(name="mail")
def mail() -> None:
    """Take the same time in every release."""
    run(0.1)


@task(name="invoice")
def invoice() -> None:
    """Take four times as long in the bad release."""
    run(0.2 if RELEASE == BAD else 0.05)


@task(name="charge")
def charge() -> None:
    """Fail in the bad release."""
    run(0.05)
    if RELEASE == BAD:
        raise ValueError("no credit")


@task(name="import_row")
def import_row() -> None:
    """Fail at once in the bad release."""
    run(0)
    if RELEASE == BAD:
        raise ValueError("unknown column")
