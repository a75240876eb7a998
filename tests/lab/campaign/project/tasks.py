"""Tasks that say when they begin and end, in a journal of their process: outside of the queue that is judged."""

from __future__ import annotations

import os
import time
import zlib
from functools import cache
from pathlib import Path

from django_fairque import current_task, task
from django_fairque.tasks.context import RunningTask
from tests.lab.campaign.journal import ChildName, Journal

# More retries than any attempt needs: one that was used without a reason is seen by their number.
RETRIES = 5


@cache
def _journal(worker: str) -> Journal:
    return Journal(Path(os.environ["CAMPAIGN_DIRECTORY"]) / "effects" / str(ChildName(os.getpid(), worker)))


def _begin(text: str) -> tuple[Journal, int]:
    me = current_task()
    assert isinstance(me, RunningTask)
    journal = _journal(me.lease.worker)
    sum_of_text = zlib.crc32(text.encode())
    journal.write(what="start", id=me.id, token=me.fence, sum=sum_of_text, at=time.time())
    return journal, me.fence


def _end(journal: Journal, token: int) -> dict[str, int]:
    journal.write(what="end", id=current_task().id, token=token, at=time.time())
    return {"token": token}


@task(name="campaign.work", max_retries=RETRIES)
def work(seconds: float, text: str) -> dict[str, int]:
    journal, token = _begin(text)
    time.sleep(seconds)
    return _end(journal, token)


@task(name="campaign.flaky", max_retries=RETRIES)
def flaky(seconds: float, text: str) -> dict[str, int]:
    """Fails the first time."""
    journal, token = _begin(text)
    time.sleep(seconds)
    if current_task().attempt == 1:
        raise OSError("as it should")
    return _end(journal, token)


@task(name="campaign.poison", max_retries=RETRIES)
def poison(seconds: float, text: str) -> None:
    """Takes its process with it."""
    _begin(text)
    os._exit(1)
